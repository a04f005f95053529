package main

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestOpenBelow checks that a subPath is made as its volume is, and that no link of a container leads
// out of the volume.
func TestOpenBelow(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, os.ModeSticky|0o777); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		fd, err := openBelow(dir, "a/b")
		if err != nil {
			t.Fatal(err)
		}
		_ = unix.Close(fd)
	}
	if st, err := os.Stat(filepath.Join(dir, "a/b")); err != nil ||
		st.Mode() != os.ModeDir|os.ModeSticky|0o777 {
		t.Errorf("%v, %v", st, err)
	}
	for name, to := range map[string]string{"root": "/", "up": "..", "self": "a"} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		for _, sub := range []string{name, name + "/b"} {
			if _, err := openBelow(dir, sub); err == nil {
				t.Errorf("%s is followed", sub)
			}
		}
	}
	for _, sub := range []string{"..", "a/../..", "a//b", "/"} {
		if _, err := openBelow(dir, sub); err == nil {
			t.Errorf("%s is opened", sub)
		}
	}
}
