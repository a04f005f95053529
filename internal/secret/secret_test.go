package secret

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
)

func TestNew(t *testing.T) {
	for name, pairs := range map[string][]string{
		"short":  {"A=abc"},
		"blank":  {"A=      "},
		"NUL":    {"A=abcd\x00"},
		"twice":  {"A=abcd", "A=efgh"},
		"empty":  {"A="},
		"longer": {"A=" + strings.Repeat("x", MaxValue+1)},
		"name":   {"A=efgh", "XefghX=abcd"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := New(pairs)
			if turnstone.KindOf(err) != turnstone.KindInvalid {
				t.Fatalf("%v", err)
			}
			if _, v, _ := strings.Cut(pairs[0], "="); len(v) >= minValue &&
				strings.Contains(err.Error(), v[:minValue]) {
				t.Errorf("the error holds the value: %v", err)
			}
		})
	}
	if s, err := New(nil); s != nil || err != nil || s.Mask("abc") != "abc" || s.Names() != nil {
		t.Error("no secrets mask something")
	}
}

func set(t interface{ Fatal(...any) }, pairs ...string) *Set {
	s, err := New(pairs)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestMask(t *testing.T) {
	s := set(t, "TOKEN=s3cr3t-value", "LONG=s3cr3t-value-and-more",
		"KEY=-----BEGIN-----\nabcdefgh12345678\n-----END-----\n", "A=aaaa")
	for in, want := range map[string]string{
		"":                         "",
		"x s3cr3t-value y":         "x [secret TOKEN] y",
		"s3cr3t-value-and-more":    "[secret LONG]",
		"s3cr3t-value-and-less":    "[secret TOKEN]-and-less",
		"s3cr3t-valu":              "s3cr3t-valu",
		"s3cr3t-values3cr3t-value": "[secret TOKEN][secret TOKEN]",
		"key: abcdefgh12345678":    "key: [secret KEY]",
		"-----BEGIN-----\nabcdefgh12345678\n-----END-----\n": "[secret KEY]\n",
		"aaaaa": "[secret A]", "aaaaaaaaax": "[secret A]x", "aaaabaaaa": "[secret A]b[secret A]",
	} {
		if got := s.Mask(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
	kept, dropped := s.Strip([]string{"PATH=/bin", "TOKEN=other", "COPY=xs3cr3t-value"})
	if !slices.Equal(kept, []string{"PATH=/bin"}) || !slices.Equal(dropped, []string{"COPY"}) {
		t.Errorf("%q %q", kept, dropped)
	}
}

// A reader of a terminal must not wait for output that no secret begins with.
func TestHoldsBackLittle(t *testing.T) {
	s := set(t, "TOKEN=s3cr3t-value")
	var b bytes.Buffer
	w := s.Writer(&b)
	_, _ = w.Write([]byte("prompt> s3cr"))
	if b.String() != "prompt> " {
		t.Errorf("%q", b.String())
	}
	_, _ = w.Write([]byte("ap"))
	if b.String() != "prompt> s3crap" {
		t.Errorf("%q", b.String())
	}
}

// TestArmor: the lines that all keys share are not secret.
func TestArmor(t *testing.T) {
	const key = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2Vw\n-----END PRIVATE KEY-----\n"
	s, err := New([]string{"KEY=" + key})
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		key: "[secret KEY]\n", "x MC4CAQAwBQYDK2Vw": "x [secret KEY]",
		"-----BEGIN PRIVATE KEY-----\nother\n-----END PRIVATE " +
			"KEY-----\n": "-----BEGIN PRIVATE KEY-----\nother\n-----END PRIVATE KEY-----\n",
	} {
		if got := s.Mask(text); got != want {
			t.Errorf("%q: %q", text, got)
		}
	}
}

// TestMaskCut: the remaining part of a truncated value is masked too.
func TestMaskCut(t *testing.T) {
	s, err := New([]string{"A=abcdefghij"})
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"x abcdefghij": "x [secret A]", "x abcdefghi": "x [secret A]",
		"x abcdefghij abcd": "x [secret A] [secret A]",
		"x abc":             "x abc", "abcdefghi x": "abcdefghi x", "": "",
	} {
		if got := s.MaskCut(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	if got := (*Set)(nil).MaskCut("x"); got != "x" {
		t.Error(got)
	}
}

func TestWith(t *testing.T) {
	var none *Set
	if none.With("x") != nil || none.With("x", "abc") != nil {
		t.Error("nothing to mask is no set")
	}
	given, err := New([]string{"A=first-value"})
	if err != nil {
		t.Fatal(err)
	}
	both := given.With("header X", "Bearer second-value", "second-value")
	if got := both.Mask("first-value, Bearer second-value, second-value"); got != "[secret A], [secret header X], [secret header X]" {
		t.Errorf("masked: %s", got)
	}
	if fmt.Sprint(both.Names(), both.Env()) != "[A] [A=first-value]" {
		t.Errorf("given to steps: %v", both.Env())
	}
	if given.In("second-value") != "" || none.With("h", "value").In("a value") != "h" {
		t.Error("the set it was made of has changed, or the new one finds nothing")
	}
}
