package filestamp

import (
	"os"
	"path/filepath"
	"testing"
)

// TestLink: a stamp follows a link if it was fresh just before, and not if the file was written meanwhile.
func TestLink(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	if err := os.WriteFile(path, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Of(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	l, err := Link(path, filepath.Join(dir, "g"))
	if err != nil {
		t.Fatal(err)
	}
	if now := l.Stamp(s); !now.Fresh(path) || !now.Fresh(filepath.Join(dir, "g")) || now.Digest != s.Digest {
		t.Errorf("%+v", now)
	}
	for name, change := range map[string]func(s *Stamp, l *Linked){
		"an earlier stamp":       func(s *Stamp, _ *Linked) { s.CtimeNs-- },
		"another file":           func(s *Stamp, _ *Linked) { s.Inode++ },
		"written meanwhile":      func(_ *Stamp, l *Linked) { l.after.MtimeNs++ },
		"cut meanwhile":          func(_ *Stamp, l *Linked) { l.after.Size-- },
		"another file meanwhile": func(_ *Stamp, l *Linked) { l.after.Inode++ },
	} {
		was, with := s, l
		change(&was, &with)
		if now := with.Stamp(was); now != was {
			t.Errorf("%s: %+v", name, now)
		}
	}
	if _, err := Link(path, path); err == nil {
		t.Error("a name that is taken")
	}
	if _, err := Link(filepath.Join(dir, "none"), filepath.Join(dir, "h")); err == nil {
		t.Error("no file")
	}
}
