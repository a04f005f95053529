package ui

import (
	"encoding/json"
	"net/url"
	"strings"
	"testing"
)

// check walks a tree of nodes and reports what the page must not get.
func check(t *testing.T, list []node, depth int) (n int) {
	t.Helper()
	if depth > maxDepth+1 {
		t.Fatal("the tree is too deep")
	}
	for _, c := range list {
		n++
		if c.Href != "" {
			u, err := url.Parse(c.Href)
			if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || c.Kind != "a" {
				t.Errorf("%s leads to %q", c.Kind, c.Href)
			}
		}
		if !strings.Contains(" text html pre h a hr ul ol li p quote em strong del code table tr td span ",
			" "+c.Kind+" ") {
			t.Errorf("unknown kind %q", c.Kind)
		}
		n += check(t, c.Kids, depth+1)
	}
	return n
}

// FuzzRender renders hostile receipts.
func FuzzRender(f *testing.F) {
	for _, s := range []string{"# a\n\n[x](javascript:y) <b>\n\n| a |\n|---|\n| b |\n", "---\na: b\n---\ntext",
		"---\n", strings.Repeat(">", 200) + "x", strings.Repeat("- ", 100) + "x", "![a](http://x/y) <http://z>",
		"[" + strings.Repeat("*a", 50), "```x\n\xff\n", "&#x6a; &amp; \\* `a`\r\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		if len(src) > 8<<10 {
			t.Skip()
		}
		r := receiptOf(src)
		if n := check(t, r.Body, 0); n > maxNodes+100 {
			t.Errorf("%d nodes", n)
		}
		if _, err := json.Marshal(r); err != nil {
			t.Error(err)
		}
	})
}

// TestDeep renders what is nested without end: its text stays.
func TestDeep(t *testing.T) {
	for _, src := range []string{strings.Repeat("> ", 500) + "needle", strings.Repeat("- ", 500) + "needle",
		strings.Repeat("*a ", 500) + "needle" + strings.Repeat("*", 500)} {
		r := receiptOf([]byte(src))
		check(t, r.Body, 0)
		if b, err := json.Marshal(r.Body); err != nil || !strings.Contains(string(b), "needle") {
			t.Errorf("%.20s: the text is gone (%v)", src, err)
		}
	}
}

// TestLongReceipt shows the beginning.
func TestLongReceipt(t *testing.T) {
	r := receiptOf([]byte(strings.Repeat("a line\n\n", 100_000)))
	if !r.Cut || r.Size != 800_000 || check(t, r.Body, 0) > maxNodes+100 {
		t.Errorf("cut %v, %d bytes", r.Cut, r.Size)
	}
}
