//go:build unix

package authority

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"turnstone.dev/turnstone"
)

// read returns the content of a file of a's keys.
func read(t testing.TB, a Authority, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(a.Ring.Dir.Path("keys", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func write(t testing.TB, a Authority, name string, b []byte) {
	t.Helper()
	if err := os.WriteFile(a.Ring.Dir.Path("keys", name), b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestRotateFromCopy: a rotation after the record was restored from an older copy destroys no key,
// because the record that names it may return. Neither does one after a crash before the record.
func TestRotateFromCopy(t *testing.T) {
	a, _ := made(t)
	copied := read(t, a, "root.json")
	if _, err := rotate(t, a); err != nil {
		t.Fatal(err)
	}
	record, private, public := read(t, a, "root.json"), read(t, a, "root-2"), read(t, a, "root-2.pub")
	for range 3 { // in one second
		write(t, a, "root.json", copied)
		if _, err := rotate(t, a); err != nil {
			t.Fatal(err)
		}
	}
	paths, err := filepath.Glob(a.Ring.Dir.Path("keys", "root-2.2*"))
	if err != nil || len(paths) != 6 {
		t.Fatal(paths, err)
	}
	found := ""
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", path, info, err)
		}
		if b, err := os.ReadFile(path); err == nil && bytes.Equal(b, private) {
			found = path
		}
	}
	if b, err := os.ReadFile(found + ".pub"); err != nil || !bytes.Equal(b, public) {
		t.Fatal("the first key is lost", err)
	}
	write(t, a, "root.json", record)
	if err := os.Rename(found, a.Ring.Dir.Path("keys", "root-2")); err != nil {
		t.Fatal(err)
	}
	sign(t, a, 1, "n1")
}

// TestHasPassphrase: the key of the record's root counts.
func TestHasPassphrase(t *testing.T) {
	a, _ := made(t)
	if has, err := a.HasPassphrase(); err != nil || has {
		t.Error(has, err)
	}
	if _, _, err := a.Rotate(t.Context(), []byte("one")); err != nil {
		t.Fatal(err)
	}
	if has, err := a.HasPassphrase(); err != nil || !has {
		t.Error(has, err)
	}
}

// TestRecordHostile: a record that others could have written, or that is damaged, certifies nobody:
// a revocation signs all certificates of it again.
func TestRecordHostile(t *testing.T) {
	a, _ := made(t)
	sign(t, a, 1, "n1")
	if _, err := rotate(t, a); err != nil {
		t.Fatal(err)
	}
	if _, _, err := a.Revoke(t.Context(), []string{node(t, 5).ID()}, 0); err != nil {
		t.Fatal(err)
	}
	path := a.path()
	whole := read(t, a, "root.json")
	refused := func(what string) {
		t.Helper()
		_, _, err := a.Revoke(t.Context(), nil, 0)
		if turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Errorf("%s: %v", what, err)
		}
	}
	for what, change := range map[string]func(r map[string]any){
		"an unknown field":  func(r map[string]any) { r["later"] = 1 },
		"a name with a /":   func(r map[string]any) { first(r, "nodes")["node"] = "../n1" },
		"a name with a CSI": func(r map[string]any) { first(r, "revoked")["node"] = "\x1b[2J" },
		"no key":            func(r map[string]any) { first(r, "nodes")["key"] = "x" },
		"no fingerprint":    func(r map[string]any) { first(r, "revoked")["key"] = "\x1b]0;x\a" },
		"a later epoch":     func(r map[string]any) { first(r, "revoked")["epoch"] = 99 },
		"no time":           func(r map[string]any) { delete(first(r, "nodes"), "expires") },
		"an end before its start": func(r map[string]any) {
			n := first(r, "nodes")
			n["time"], n["expires"] = n["expires"], n["time"]
		},
		"a revoked node": func(r map[string]any) {
			first(r, "revoked")["key"] = node(t, 1).ID()
		},
		"another succession": func(r map[string]any) { r["successions"] = []string{"{}"} },
		"none":               func(r map[string]any) { delete(r, "successions") },
	} {
		r := map[string]any{}
		if err := json.Unmarshal(whole, &r); err != nil {
			t.Fatal(err)
		}
		change(r)
		b, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		write(t, a, "root.json", b)
		refused(what)
	}
	write(t, a, "root.json", append(bytes.Clone(whole), whole...))
	refused("two records")
	write(t, a, "root.json", append(bytes.Clone(whole), bytes.Repeat([]byte(" "), maxRecord)...))
	refused("a huge file")
	write(t, a, "root.json", whole)
	for _, mode := range []os.FileMode{0o602, 0o660, 0o666} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		refused(mode.String())
	}
	if err := os.Rename(path, path+".moved"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(path+".moved", path); err != nil {
		t.Fatal(err)
	}
	refused("a link")
	_ = os.Remove(path)
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	refused("a pipe")
	if err := os.Rename(path+".moved", path); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o644); err != nil { // it is no secret
		t.Fatal(err)
	}
	if _, _, err := a.Revoke(t.Context(), nil, 0); err != nil {
		t.Error(err)
	}
}

// first returns the first object of a list in a record.
func first(r map[string]any, list string) map[string]any {
	return r[list].([]any)[0].(map[string]any)
}

// FuzzRecord: a record that is accepted can be stored and read again, and nothing in it reaches a
// terminal but names and keys.
func FuzzRecord(f *testing.F) {
	a, _ := made(f)
	sign(f, a, 1, "n1")
	if _, _, err := a.Revoke(f.Context(), []string{node(f, 5).ID()}, 0); err != nil {
		f.Fatal(err)
	}
	f.Add(read(f, a, "root.json"))
	f.Add([]byte(`{"root":"","epoch":1e99,"nodes":[{}],"revoked":[{}],"successions":["\n"]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decode(b)
		if err != nil {
			return
		}
		text, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := decode(text); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		for _, n := range r.Nodes {
			if strings.ContainsAny(n.Node+n.ID(), "\x1b\n\r\x7f/") || n.ID() == "" {
				t.Fatalf("%+q", n.Key)
			}
		}
		for _, n := range r.Revoked {
			if strings.ContainsAny(n.Node+n.Key, "\x1b\n\r\x7f") {
				t.Fatalf("%+q", n.Key)
			}
		}
	})
}
