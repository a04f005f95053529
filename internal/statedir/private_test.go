package statedir

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
)

// openAt opens the state directory dir.
func openAt(t *testing.T, dir string) error {
	t.Helper()
	_, err := Open(dir)
	return err
}

func mkdir(t *testing.T, mode os.FileMode, elem ...string) string {
	t.Helper()
	dir := filepath.Join(elem...)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, mode); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestOpenMakesItPrivate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	if err := openAt(t, dir); err != nil {
		t.Fatal(err)
	}
	for _, made := range []string{dir, filepath.Dir(dir)} {
		if st, err := os.Stat(made); err != nil || st.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v, %v", made, st.Mode(), err)
		}
	}
}

// A state directory that other users could write or replace is rejected.
func TestOpenRefusesOthers(t *testing.T) {
	top := t.TempDir()
	for name, c := range map[string]struct {
		dir  string
		says string // empty: accepted
	}{
		"private":  {mkdir(t, 0o700, top, "a"), ""},
		"readable": {mkdir(t, 0o755, top, "b"), ""},
		"writable": {mkdir(t, 0o777, top, "c"), "other users can write " +
			filepath.Join(top, "c") + " (mode 0777)"},
		"writable by others alone": {mkdir(t, 0o702, top, "d"), "other users can write"},
		"writable parent": {mkdir(t, 0o700, mkdir(t, 0o777, top, "e"), "x"),
			"other users can write " + filepath.Join(top, "e")},
		"sticky parent": {mkdir(t, 0o700,
			mkdir(t, 0o777|os.ModeSticky, top, "f"), "x"), ""},
		"sticky parent's parent": {mkdir(t, 0o700,
			mkdir(t, 0o777|os.ModeSticky, top, "g"), "x", "y"), ""},
		"link": {link(t, filepath.Join(top, "a"), top, "h"), ""},
		"link to what others write": {link(t, filepath.Join(top, "c"), top, "i"),
			"other users can write"},
		"link through others": {link(t, "../a", mkdir(t, 0o777, top, "j"), "x"),
			"other users can write " + filepath.Join(top, "j")},
		"link out of others": {
			filepath.Join(link(t, "..", mkdir(t, 0o700, top, "k"), "x"), "a"), ""},
	} {
		err := openAt(t, c.dir)
		switch {
		case c.says == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.says != "" &&
			(err == nil || !strings.Contains(err.Error(), c.says) || turnstone.HintOf(err) == ""):
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
}

func link(t *testing.T, target string, elem ...string) string {
	t.Helper()
	at := filepath.Join(elem...)
	if err := os.Symlink(target, at); err != nil {
		t.Fatal(err)
	}
	return at
}

// A directory of another user, and a directory below a directory of another user, are rejected.
func TestOpenRefusesOwners(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can make files of another user")
	}
	top := t.TempDir()
	dir := mkdir(t, 0o700, top, "theirs")
	below := mkdir(t, 0o700, dir, "mine")
	sticky := mkdir(t, 0o777|os.ModeSticky, top, "sticky")
	planted := mkdir(t, 0o700, sticky, "planted")
	led := link(t, filepath.Join(top, "mine"), sticky, "led")
	mkdir(t, 0o700, top, "mine")
	for _, path := range []string{dir, planted, led} {
		if err := os.Lchown(path, 4242, -1); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{dir, below, planted, led} {
		if err := openAt(t, path); err == nil ||
			!strings.Contains(err.Error(), "belongs to user 4242") ||
			turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Errorf("%s: %v", path, err)
		}
	}
}
