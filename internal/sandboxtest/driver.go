package sandboxtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/erofs/go-erofs"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/guest/agent"
	"turnstone.dev/turnstone/internal/guest/script"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/wire"
)

// A Driver is a substrate without machines: each of its sandboxes is an agent in this process. It
// stands in the place of gVisor, whose name it has.
//
// Real are the agent with its shell session, steps in real shells, the protocol, the export of
// changes, and what the host does with all of it. Replaced are the kernel and the overlay: the
// guest's root is the folder Root of the host, into which the files of the template and of the
// layers are copied, and every name in it is the host's. There is no isolation, no network, no
// control group and no boot. Steps run with the rights of the test. One sandbox at a time uses the
// folder.
type Driver struct {
	Dir string // an existing folder
	// Started is called with each sandbox before its agent is configured; nil: not called.
	Started func(*Guest)
	// Configured is called with each machine and its configuration; nil: not called.
	Configured func(substrate.Machine, *wire.SandboxConfigureParams)

	// Strict makes it stand in the place of QEMU with TCG, for turns of the tier strict: the script
	// of a machine is performed before the host is connected. Clocks and random numbers are not
	// pinned.
	Strict bool

	mu   sync.Mutex
	free chan struct{} // is closed when the folder's last sandbox has ended; nil: there was none
}

// freePatience bounds the wait for the end of a sandbox that uses the folder: a turn may be over
// before the end of its machine.
const freePatience = 2 * time.Minute

// Root is the folder of the host that is the root of guests.
func (d *Driver) Root() string { return filepath.Join(d.Dir, upper) }

const upper = "upper" // the folder of Dir that the agent exports

// Open implements sandbox.Drivers. Only one substrate works here.
func (d *Driver) Open(_ context.Context, name, _ string, _ substrate.GuestKernel) (
	substrate.Substrate, error) {
	if name != d.Name() {
		return nil, turnstone.Errorf("test.open", turnstone.KindUnavailable, name,
			"there are no machines in this test")
	}
	return d, nil
}

// Name implements substrate.Substrate.
func (d *Driver) Name() string {
	if d.Strict {
		return "qemu"
	}
	return "gvisor"
}

func (*Driver) Isolation() string { return "none, an agent in the test's process" }
func (*Driver) OwnKernel()        {}

// Tier implements substrate.Deterministic. Neither clocks nor random numbers are pinned.
func (d *Driver) Tier() turnstone.Tier {
	if d.Strict {
		return turnstone.TierStrict
	}
	return turnstone.TierSeeded
}

// Boot implements substrate.Substrate.
func (d *Driver) Boot(ctx context.Context, m substrate.Machine) (substrate.Sandbox, error) {
	return d.Restore(ctx, m)
}

// RestoreFrom implements substrate.Resumer, which a substrate has that pauses sandboxes.
func (*Driver) RestoreFrom(context.Context, substrate.Machine, string) (substrate.Sandbox, error) {
	return nil, turnstone.Errorf("test.restore", turnstone.KindUnavailable, "sandbox",
		"an agent in the test's process cannot be cloned")
}

// Restore implements substrate.Substrate.
func (d *Driver) Restore(ctx context.Context, m substrate.Machine) (substrate.Sandbox, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.free != nil {
		select {
		case <-d.free:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(freePatience):
			return nil, errors.New("another sandbox uses the folder")
		}
	}
	if err := d.fill(m); err != nil {
		return nil, err
	}
	lower, err := below(d.Root())
	if err != nil {
		return nil, err
	}
	disks := &agent.Disks{Upper: upper,
		Still: func(context.Context) error { return hideRemoved(lower) }}
	if err := disks.Add(d.Dir); err != nil {
		return nil, err
	}
	options := agent.Options{RunDir: filepath.Join(d.Dir, "run"),
		Cwd: filepath.Join(d.Root(), "workspace"), Disks: disks,
		Configure: func(p *wire.SandboxConfigureParams) (*wire.SandboxConfigureResult, error) {
			if d.Configured != nil {
				d.Configured(m, p)
			}
			return configure(p)
		}, Renew: renew,
		Env: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + d.Root(), "LANG=C.UTF-8"}}
	conductor, err := d.conductor(m.Determinism)
	if conductor != nil {
		options.Script = conductor
	}
	var g *Guest
	if err == nil {
		g, err = Boot(options, nil)
	}
	if err != nil {
		return nil, errors.Join(err, disks.Close())
	}
	ended := make(chan struct{})
	d.free, g.free = ended, func() {
		_ = disks.Close()
		close(ended)
	}
	if d.Started != nil {
		d.Started(g)
	}
	if conductor != nil {
		if err := perform(ctx, g, conductor, m.Determinism.Limit); err != nil {
			return nil, errors.Join(err, g.Close())
		}
	}
	return g, nil
}

// conductor returns the conductor of d's script, as the guest reads it; nil without a script.
func (d *Driver) conductor(of *substrate.Determinism) (*script.Conductor, error) {
	if of == nil || len(of.Script) == 0 {
		return nil, nil
	}
	var b bytes.Buffer
	if err := script.Encode(&b, of.Script); err != nil {
		return nil, err
	}
	calls, err := script.Decode(bytes.NewReader(b.Bytes()), int64(b.Len()))
	return script.New(calls, func() (*os.File, error) {
		f, err := os.CreateTemp(d.Dir, "output-*")
		if err == nil {
			err = os.Remove(f.Name())
		}
		return f, err
	}), err
}

// perform performs the script within limit.
func perform(ctx context.Context, g *Guest, c *script.Conductor, limit time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, substrate.ErrTimeUp)
	defer cancel()
	if err := c.Run(ctx, g.agent.ServeConn); err != nil {
		return fmt.Errorf("the script of the test: %w", context.Cause(ctx))
	}
	return nil
}

// configure and renew confirm what a machine would do: this process has one identity.
func configure(*wire.SandboxConfigureParams) (*wire.SandboxConfigureResult, error) {
	return &wire.SandboxConfigureResult{Reseeded: true, Upper: upper}, nil
}

func renew(*wire.SandboxRenewParams) (*wire.SandboxRenewResult, error) {
	return &wire.SandboxRenewResult{Reseeded: true}, nil
}

// fill makes the root anew, from the images of m.
func (d *Driver) fill(m substrate.Machine) error {
	err := errors.Join(os.RemoveAll(d.Root()), os.Mkdir(d.Root(), 0o755), d.unpack(m.Root, "."))
	for _, image := range m.Layers {
		err = errors.Join(err, d.unpack(image, "fs"))
	}
	return err
}

// unpack copies the folder dir of an image over the root, as an overlay would show it.
func (d *Driver) unpack(image, dir string) error {
	f, err := os.Open(image)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	img, err := erofs.Open(f)
	if err != nil {
		return err
	}
	times := map[string]time.Time{} // of folders, which change as they are filled
	err = fs.WalkDir(img, dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		fi, err := e.Info()
		if err != nil {
			return err
		}
		at := filepath.Join(d.Root(), rel)
		if fi.IsDir() {
			times[at] = fi.ModTime()
		}
		return unpackFile(img, path, at, fi)
	})
	for at, t := range times {
		err = errors.Join(err, os.Chtimes(at, t, t))
	}
	return err
}

func unpackFile(img fs.FS, path, at string, fi fs.FileInfo) error {
	is := fi.Sys().(*erofs.Stat)
	hides := !fi.IsDir() || is.Xattrs["trusted.overlay.opaque"] == "y"
	if st, err := os.Lstat(at); err == nil && (hides || !st.IsDir()) {
		if err := os.RemoveAll(at); err != nil {
			return err
		}
	}
	switch mode := fi.Mode(); {
	case mode.IsDir():
		return errors.Join(os.MkdirAll(at, 0o755), os.Chmod(at, mode.Perm()))
	case mode.IsRegular():
		b, err := fs.ReadFile(img, path)
		if err != nil {
			return err
		}
		return errors.Join(os.WriteFile(at, b, mode.Perm()), os.Chmod(at, mode.Perm()),
			os.Chtimes(at, fi.ModTime(), fi.ModTime()))
	case mode&fs.ModeCharDevice != 0 && is.Rdev == 0:
		return nil // a whiteout
	}
	return errors.New(path + ": a kind of file that this test does not copy")
}

// below returns the paths of all files below dir, each folder before its files.
func below(dir string) (paths []string, err error) {
	err = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		paths = append(paths, path)
		return err
	})
	return paths, err
}

// hideRemoved leaves a whiteout in the place of each of paths that is gone.
func hideRemoved(paths []string) error {
	for _, path := range paths {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			continue // ENOTDIR: its folder is hidden
		}
		if err := hide(path); err != nil {
			return err
		}
	}
	return nil
}
