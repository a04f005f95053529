package service

import (
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestInputEnds checks that the input of a process has all that was written before its end, and
// that it does not end with its writer.
func TestInputEnds(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "in")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := openFiles(pipe, "", "", false)
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	for _, text := range []string{"first, ", "second"} {
		w, err := os.OpenFile(pipe, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.WriteString(text); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	f.endIn()
	if text, err := io.ReadAll(f.in); err != nil || string(text) != "first, second" {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := openFiles("", t.TempDir(), "", false); err == nil {
		t.Error("a folder is an output")
	}
}
