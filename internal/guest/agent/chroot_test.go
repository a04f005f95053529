package agent

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/wire"
)

// chrooted returns an agent whose processes have root as their root, with a client, and a directory
// outside of that root to which the link /out of the root points.
func chrooted(t *testing.T) (c *wire.Client, root, out string) {
	t.Helper()
	root, out = t.TempDir(), t.TempDir()
	a, err := New(Options{Chroot: root, Cwd: "/w"})
	if err != nil {
		t.Fatal(err)
	}
	near, far := net.Pipe()
	a.ServeConn(far)
	c = wire.NewClient(near)
	t.Cleanup(func() {
		_ = c.Close()
		if err := a.Close(); err != nil {
			t.Error(err)
		}
		left, err := os.ReadDir(out)
		if err != nil || len(left) != 1 {
			t.Errorf("outside of the root: %v %v", left, err)
		}
	})
	err = errors.Join(os.Symlink(out, filepath.Join(root, "out")),
		os.WriteFile(filepath.Join(out, "secret"), []byte("secret"), 0o755))
	if err != nil {
		t.Fatal(err)
	}
	return c, root, out
}

func tarOf(t *testing.T, names ...string) io.Reader {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, n := range names {
		h := &tar.Header{Name: n, Mode: 0o644, Size: int64(len(n)), Typeflag: tar.TypeReg}
		if strings.HasSuffix(n, "/") {
			h.Typeflag, h.Size, h.Mode = tar.TypeDir, 0, 0o755
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			if _, err := io.WriteString(w, n); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

// TestStartInRoot checks that the names of a process's directory, program and user never lead out
// of its root.
func TestStartInRoot(t *testing.T) {
	c, root, out := chrooted(t)
	if err := errors.Join(os.Symlink(out, filepath.Join(root, "etc")),
		os.WriteFile(filepath.Join(out, "secret"), []byte("secret"), 0o755)); err != nil {
		t.Fatal(err)
	}
	_, err := c.ProcessStart(t.Context(),
		&wire.ProcessStartParams{Argv: []string{"/none"}, Cwd: "/out/made/here"})
	if err == nil {
		t.Error("it was started")
	}
	_, err = c.ProcessStart(t.Context(),
		&wire.ProcessStartParams{Argv: []string{"secret"}, Env: []string{"PATH=/out"}})
	if err == nil || !strings.Contains(err.Error(), "command not found") {
		t.Errorf("a program outside of the root was found: %v", err)
	}
	if _, err := os.Stat(filepath.Join(root, "w")); err != nil {
		t.Errorf("the working directory was not made: %v", err)
	}
	if err := os.Rename(filepath.Join(out, "secret"), filepath.Join(out, "passwd")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(out, "passwd"), []byte("ana:x:1000:1000::/:/bin/sh\n"),
		0o644); err != nil {
		t.Fatal(err)
	}
	_, err = c.ProcessStart(t.Context(),
		&wire.ProcessStartParams{Argv: []string{"/none"}, User: "ana"})
	if err == nil || !strings.Contains(err.Error(), "no such user") {
		t.Errorf("a user of another root was found: %v", err)
	}
}

// TestCopyInRoot checks that pack and unpack work in the processes' root, and nowhere else.
func TestCopyInRoot(t *testing.T) {
	c, root, out := chrooted(t)
	put := func(dest string,
		names ...string) error {
		return c.Put(t.Context(), dest, tarOf(t, names...))
	}
	read := func(name string) string {
		b, _ := os.ReadFile(filepath.Join(root, name))
		return string(b)
	}
	for _, tt := range []struct {
		dest  string
		names []string
		file  string
	}{
		{"/d/e/", []string{"a", "b/", "b/c"}, "d/e/b/c"},
		{"/d", []string{"f"}, "d/f"},
		{"/new/name", []string{"t/", "t/x"}, "new/name/x"},
		{"/d/f", []string{"g"}, "d/f"},
	} {
		if err := put(tt.dest, tt.names...); err != nil {
			t.Errorf("%s: %v", tt.dest, err)
		}
		if got, want := read(tt.file), tt.names[len(tt.names)-1]; got != want {
			t.Errorf("%s: %q, want %q", tt.file, got, want)
		}
	}
	kindIs(t, put("/d/f", "h/", "h/i"), turnstone.KindInvalid)
	if got := read("d/f"); got != "g" {
		t.Errorf("a folder took the place of a file, which is %q", got)
	}
	kindIs(t, put("/one", "a", "b"), turnstone.KindInvalid)
	for _, dest := range []string{"/out", "/out/", "/out/x", "/out/x/"} {
		_ = put(dest, "evil") // only below the root
	}
	if err := os.Symlink(filepath.Join(out, "secret"), filepath.Join(root, "file")); err != nil {
		t.Fatal(err)
	}
	_ = put("/file", "evil")
	if b, err := os.ReadFile(filepath.Join(out, "secret")); string(b) != "secret" {
		t.Errorf("outside of the root: %q %v", b, err)
	}
	for _, path := range []string{"/d", "/d/f", "/d/e"} {
		var b bytes.Buffer
		if err := c.Get(t.Context(), path, &b); err != nil || b.Len() < 512 {
			t.Errorf("%s: %d bytes, %v", path, b.Len(), err)
		}
	}
	for _, path := range []string{"/out/secret", "/"} {
		if err := c.Get(t.Context(), path, io.Discard); err == nil {
			t.Errorf("%s was packed", path)
		}
	}
	names, err := filepath.Glob(filepath.Join(root, "*", ".turn-*"))
	if more, _ := filepath.Glob(filepath.Join(root, ".turn-*")); err != nil ||
		len(names)+len(more) > 0 {
		t.Errorf("left behind: %v %v", names, more)
	}
}

// TestCopyWhileMoved checks that a directory that repeatedly turns into a link out of the root is
// never followed.
func TestCopyWhileMoved(t *testing.T) {
	c, root, out := chrooted(t)
	dir := filepath.Join(root, "d")
	if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(dir+"/secret", []byte("public"),
		0o644), os.Symlink(out, root+"/l")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	swapped := make(chan struct{})
	go func() {
		defer close(swapped)
		for ctx.Err() == nil {
			_ = os.Rename(dir, root+"/d2")
			_ = os.Rename(root+"/l", dir)
			_ = os.Rename(dir, root+"/l")
			_ = os.Rename(root+"/d2", dir)
		}
	}()
	for range 300 {
		var b bytes.Buffer
		_ = c.Get(ctx, "/d", &b)
		if bytes.Contains(b.Bytes(), []byte("secret"+strings.Repeat("\x00", 506))) {
			t.Fatal("a file outside of the root was read")
		}
		_ = c.Put(ctx, "/d", tarOf(t, "new"))
	}
	cancel()
	<-swapped
}
