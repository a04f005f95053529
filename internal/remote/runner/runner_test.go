package runner

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/executor"
)

func parse(t *testing.T, text string) *document.Document {
	t.Helper()
	d, err := document.Parse("a.md", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

const step = "```bash\ntrue\n```\n"

// TestRules checks that the rules of a flag are added to those of the document, as here.
func TestRules(t *testing.T) {
	on := true
	doc := &document.NetworkRules{Allow: []string{"a.example:443"}, HasAllow: true, Record: true}
	flags := &document.NetworkRules{Deny: []string{"10.0.0.0/8"}, Replay: true, ReplayOf: "t"}
	both := rules(doc, &executor.Request{NetworkRules: flags})
	if !slices.Equal(both.Allow, doc.Allow) || !slices.Equal(both.Deny, flags.Deny) ||
		!both.Record || both.Replay {
		t.Errorf("%+v", both)
	}
	if both = rules(doc, &executor.Request{NetworkRules: flags, Network: &on}); both.Record ||
		!both.Replay || both.ReplayOf != "t" {
		t.Errorf("the modes of the flags do not win: %+v", both)
	}
	if len(doc.Allow) != 1 || rules(doc, &executor.Request{}) != nil {
		t.Error("the document's rules are sent again, or changed")
	}
}

// TestRefused checks what no host does, and that the session of a document needs its caller.
func TestRefused(t *testing.T) {
	named := parse(t, "---\nsession: other\n---\n"+step)
	for _, req := range []executor.Request{{Substrate: "gvisor"}, {Grant: []string{"lifetime"}},
		{Grant: []string{"network", "session"}}} {
		req.Document = named
		if _, err := turnSettings(&req); turnstone.KindOf(err) != turnstone.KindInvalid ||
			turnstone.HintOf(err) == "" {
			t.Errorf("%+v: %v", req, err)
		}
	}
	req := executor.Request{Document: named}
	if s, err := turnSettings(&req); err != nil || s.Session != "" {
		t.Errorf("a document names its session: %q, %v", s.Session, err)
	}
	req.Grant = []string{"session"}
	if s, err := turnSettings(&req); err != nil || s.Session != "other" || req.Session != "other" {
		t.Errorf("%q, %v", s.Session, err)
	}
}

// TestFiles checks that a document sends files of its own folder alone.
func TestFiles(t *testing.T) {
	dir := t.TempDir()
	folder := filepath.Join(dir, "doc")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(dir, "secret"), filepath.Join(folder, "own")} {
		if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range map[string]string{"out": "../secret", "abs": filepath.Join(dir,
		"secret"), "inside": "own"} {
		if err := os.Symlink(target, filepath.Join(folder, name)); err != nil {
			t.Fatal(err)
		}
	}
	for file, works := range map[string]bool{"own": true, "inside": true, "own:in/": true,
		"../secret": false, "out": false, "abs": false, "none": false, "/etc/passwd": false} {
		req := executor.Request{Dir: folder, Document: parse(t, "---\nfiles: ['"+file+"']\n---\n"+step)}
		all, err := localFiles(req)
		if (err == nil) != works {
			t.Errorf("%s: %v, %v", file, all, err)
		}
		if works && (len(all) != 1 || filepath.Dir(all[0].Path) != folder) {
			t.Errorf("%s: %+v", file, all)
		}
		req.Piped = true
		if _, err := localFiles(req); err == nil || !strings.Contains(err.Error(), "through a pipe") {
			t.Errorf("%s of a pipe: %v", file, err)
		}
	}
}
