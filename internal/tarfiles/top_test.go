package tarfiles

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"turnstone.dev/turnstone"
)

// TestTop: a stream that has another top-level name than was asked for replaces no file of the user.
func TestTop(t *testing.T) {
	for name, ok := range map[string]bool{"got/a": true, "./got/b": true, "Makefile": false,
		"got/../Makefile": false, ".git/hooks/x": false, "gotten": false} {
		dest := t.TempDir()
		own := filepath.Join(dest, "Makefile")
		if err := os.WriteFile(own, []byte("mine"), 0o600); err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Size: 1, Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
		_, _ = w.Write([]byte("x"))
		_ = w.Close()
		err := Unpack(t.Context(), &b, dest+"/", TopInState("/a/got"), Limits{})
		if (err == nil) != ok || !ok && turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Errorf("%s: %v", name, err)
		}
		if text, err := os.ReadFile(own); err != nil || string(text) != "mine" {
			t.Errorf("%s: the user's file is %q, %v", name, text, err)
		}
	}
}

// TestTopOf: a path without a name of its own allows nothing, and neither does the zero value.
func TestTopOf(t *testing.T) {
	for path, want := range map[string]string{"/a/b": "b", "a/": "a", "/a//": "a", "x": "x",
		"/": "", "": "", ".": "", "/a/.": "", "..": "", "/a/../": ""} {
		top, err := TopOf(path)
		if want == "" && turnstone.KindOf(err) != turnstone.KindInvalid || top.allows("") ||
			top.allows(".") || top.allows(want) != (want != "") || top.allows("other") {
			t.Errorf("%q: %+v %v", path, top, err)
		}
	}
}
