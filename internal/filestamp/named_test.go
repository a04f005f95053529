package filestamp

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"turnstone.dev/turnstone"
)

// during is a context that calls what is set while a file is being read: each read asks for its error.
type during struct {
	context.Context
	reads int
	do    func(read int)
}

func (d *during) Err() error {
	d.reads++
	d.do(d.reads)
	return nil
}

// TestNamedWhileRead: a file that gets and loses other names while it is read, as the image of a
// template does when a tenant uses it for the first time, is not damaged.
func TestNamedWhileRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, make([]byte, 200<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Of(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	named := func(most int) *during {
		return &during{Context: t.Context(), do: func(read int) {
			if read != 2 && most == 1 {
				return
			}
			for was := change(t, path); was == change(t, path); { // the clock of files has ticks
				if err := os.Link(path, path+".other"); err != nil {
					t.Fatal(err)
				}
				if err := os.Remove(path + ".other"); err != nil {
					t.Fatal(err)
				}
			}
		}}
	}
	now, err := s.Verify(named(0), path)
	if err != nil || now.Digest != s.Digest {
		t.Errorf("verified while it got other names: %+v, %v", now, err)
	}
	if now.Fresh(path) {
		t.Error("what changed while it was read is fresh")
	}
	if now, err = now.Check(t.Context(), path); err != nil || !now.Fresh(path) {
		t.Errorf("checked again: %+v, %v", now, err)
	}
	if again, err := Of(named(1), path); err != nil || again.Digest != s.Digest || !again.Fresh(path) {
		t.Errorf("read while it got another name: %+v, %v", again, err)
	}
	if _, err := Of(named(0), path); err == nil {
		t.Error("a file that never stands still has a stamp")
	}
}

// TestWrittenWhileRead: other content is damage, also with the old times.
func TestWrittenWhileRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, make([]byte, 200<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Of(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	write := &during{Context: t.Context(), do: func(int) {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err == nil {
			_, err = f.WriteAt([]byte("other"), 190<<10)
		}
		if err == nil {
			err = f.Close()
		}
		if err == nil {
			err = os.Chtimes(path, time.Unix(0, s.MtimeNs), time.Unix(0, s.MtimeNs))
		}
		if err != nil {
			t.Fatal(err)
		}
	}}
	if _, err := s.Verify(write, path); turnstone.KindOf(err) != turnstone.KindIntegrity {
		t.Errorf("Verify of a file that was written: %v", err)
	}
}

// change is when a file's metadata changed last.
func change(t *testing.T, path string) int64 {
	s, err := Quick(path)
	if err != nil {
		t.Fatal(err)
	}
	return s.CtimeNs
}
