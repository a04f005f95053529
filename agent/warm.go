package agent

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	wire "turnstone.dev/turnstone/oldwire"
)

// warmUp runs what every turn runs, once, before the snapshot: steps in a
// throwaway overlay of the template, driven over the protocol by a client of its
// own. A restored clone then finds the shell's pages in the page cache and the
// agent's heap and code in memory. Nothing of it stays visible.
func warmUp(opt Options) (err error) {
	merged := filepath.Join(warmDir, "root")
	if err := unix.Mount("tmpfs", warmDir, "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unix.Unmount(warmDir, unix.MNT_DETACH)) }()
	for _, d := range []string{"upper", "work", "root"} {
		if err := os.Mkdir(filepath.Join(warmDir, d), 0o755); err != nil {
			return err
		}
	}
	if err := mountOverlay(merged, filepath.Join(warmDir, "upper"), filepath.Join(warmDir, "work")); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unix.Unmount(merged, unix.MNT_DETACH)) }()
	for _, d := range kernelDirs {
		dst := filepath.Join(merged, d)
		if err := os.MkdirAll(dst, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(d, dst, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return err
		}
		defer func() { _ = unix.Unmount(dst, unix.MNT_DETACH) }()
	}
	opt.Chroot = merged
	defer func() { _ = os.RemoveAll("/run/turn") }()
	return exercise(opt)
}

// exercise drives an agent through a client, as a host does.
func exercise(opt Options) error {
	a, err := New(opt)
	if err != nil {
		return err
	}
	defer func() { _ = a.Close() }()
	near, far := net.Pipe()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	served := make(chan error, 1)
	go func() { served <- a.Serve(ctx, far) }()
	c, err := wire.NewClient(near)
	if err != nil {
		return err
	}
	for i, script := range []string{"true\n", "cd /tmp; export A=1; echo a; echo b >&2\n"} {
		id := "warm-" + string(rune('a'+i))
		_, err = c.Execute(ctx, wire.ExecuteParams{ID: id, Name: "warm", Language: "bash", Script: script}, io.Discard, io.Discard)
		if err != nil {
			break
		}
	}
	if err == nil {
		_, err = c.Start(ctx, wire.StartParams{ID: "warm-c", Argv: []string{"bash", "-c", "true"}}, nil, io.Discard, io.Discard)
	}
	return errors.Join(err, c.Close(), <-served)
}
