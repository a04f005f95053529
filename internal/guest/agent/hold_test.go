package agent

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/fsimage/upperdir"
	"turnstone.dev/turnstone/wire"
)

// On the host, functions for the first process of a sandbox do nothing.
func TestOnlyTheFirstProcess(t *testing.T) {
	if err := KillOthers(t.Context()); err == nil {
		t.Error("it would have killed every process")
	}
}

// frozenAgent has a directory as its scratch disk, and treats it as frozen.
func frozenAgent(t *testing.T) (a *Agent, c *wire.Client, dir string) {
	t.Helper()
	dir = t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "upper"), 0o755))
	d := &Disks{Upper: "upper"}
	must(t, d.Add(dir))
	renew := func(*wire.SandboxRenewParams) (*wire.SandboxRenewResult, error) {
		return &wire.SandboxRenewResult{}, nil
	}
	a, err := New(Options{RunDir: t.TempDir(), Cwd: t.TempDir(), Disks: d, Renew: renew})
	must(t, err)
	near, far := net.Pipe()
	a.ServeConn(far)
	c = wire.NewClient(near)
	t.Cleanup(func() { must(t, errors.Join(c.Close(), a.Close(), d.Close())) })
	return a, c, dir
}

func TestExportOverTheWire(t *testing.T) {
	a, c, dir := frozenAgent(t)
	must(t, os.WriteFile(filepath.Join(dir, "upper", "f"), bytes.Repeat([]byte("x"), 3<<20), 0o644))
	read := func(r io.Reader) error {
		u, err := upperdir.Read(t.Context(), r, t.TempDir(), upperdir.Options{})
		if err != nil {
			return err
		}
		defer func() { _ = u.Close() }()
		kids, err := u.Root().Children(t.Context())
		if err != nil || len(kids) != 1 {
			t.Errorf("%v %v", kids, err)
		}
		return err
	}
	if err := c.Export(t.Context(), read); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Errorf("not frozen: %v", err)
	}
	a.frozen.Store(true)
	for range 2 {
		must(t, c.Export(t.Context(), read))
	}
	enough := errors.New("enough")
	err := c.Export(t.Context(),
		func(r io.Reader) error { _, _ = r.Read(make([]byte, 10)); return enough })
	if !errors.Is(err, enough) {
		t.Errorf("given up: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	err = c.Export(ctx, func(r io.Reader) error {
		cancel()
		_, err := io.Copy(io.Discard, r)
		return err
	})
	if err == nil {
		t.Error("the call went on when its context had ended")
	}
	must(t, c.Export(t.Context(), read)) // the connection stays usable
}

// TestExportHeld checks that a sandbox that continues afterwards is held from its export to its
// renewal.
func TestExportHeld(t *testing.T) {
	_, c, dir := frozenAgent(t)
	write := func() error {
		_, err := c.FileSystemWrite(t.Context(),
			&wire.FileSystemWriteParams{Path: filepath.Join(dir, "f"), Data: []byte("x")})
		return err
	}
	drain := func(r io.Reader) error { _, err := io.Copy(io.Discard, r); return err }
	must(t, write())
	must(t, c.ExportHeld(t.Context(), drain))
	if err := write(); turnstone.KindOf(err) != turnstone.KindUnavailable {
		t.Errorf("a write while it stands still: %v", err)
	}
	if err := c.ExportHeld(t.Context(), drain); turnstone.KindOf(err) != turnstone.KindUnavailable {
		t.Errorf("again: %v", err)
	}
	_, err := c.SandboxRenew(t.Context(), &wire.SandboxRenewParams{})
	must(t, err)
	must(t, write())
	must(t, os.Rename(filepath.Join(dir, "upper"), filepath.Join(dir, "gone")))
	if err := c.ExportHeld(t.Context(), drain); err == nil {
		t.Error("there is nothing to export")
	}
	must(t, write()) // it was released
}
