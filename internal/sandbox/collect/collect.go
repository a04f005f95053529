// Package collect takes a sandbox's changes: the upper directory of its overlay, from its disk or
// from its agent's export, and its shell session. All of this data is untrusted.
package collect

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/config"
	"turnstone.dev/turnstone/internal/fsimage/ext4"
	"turnstone.dev/turnstone/internal/fsimage/upperdir"
	"turnstone.dev/turnstone/internal/sandbox"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/store/layer"
	"turnstone.dev/turnstone/internal/store/tree"
)

const op turnstone.Op = "executor.commit"

// TimeLimit bounds the time that a guest may take to freeze its disk. It writes its whole page
// cache to the disk first.
const TimeLimit = 5 * time.Minute

// identityFiles belong to a machine and not to a state: each sandbox gets its own.
var identityFiles = []string{"/etc/hostname", "/etc/hosts", "/etc/machine-id", "/etc/resolv.conf"}

// Bounds limit reads from a guest.
type Bounds struct {
	Dir    *statedir.Dir // for data that does not fit into memory, in files without names
	Limits config.Limits
	Room   func() error // an error if the host's disk is nearly full; nil: no check
}

func (b Bounds) upper(disk turnstone.Bytes) upperdir.Options {
	return upperdir.Options{Bytes: int64(disk), Entries: int(b.Limits.Entries),
		FileSize: int64(b.Limits.FileSize), Room: b.Room}
}

func (b Bounds) ext4() ext4.Options { return ext4.Options{Entries: b.Limits.Entries} }

func (b Bounds) layer(opts layer.Options) layer.Options {
	opts.MaxEntries, opts.MaxFile = int(b.Limits.Entries), int64(b.Limits.FileSize)
	skip := opts.Skip
	opts.Skip = func(path string) bool {
		return slices.Contains(identityFiles, path) || skip != nil && skip(path)
	}
	return opts
}

// Changes are a sandbox's changes, when nothing writes to it any longer. The caller closes them.
type Changes struct {
	Cwd string
	Env []string

	upper  string // the name of the upper directory
	source source
	bounds Bounds
}

// A source contains the files of Changes.
type source interface {
	// open returns the upper directory, called name, of the sandbox's overlay. It may be called
	// more than once.
	open(name string) (tree.Node, error)
	io.Closer
}

// A disk is an ext4 scratch disk, of which only the first size bytes count.
type disk struct {
	*os.File
	size int64
	opts ext4.Options
}

func (d disk) open(name string) (tree.Node, error) {
	fs, err := ext4.OpenOptions(d, d.size, d.opts)
	if err != nil {
		return nil, err
	}
	return fs.Lookup(name)
}

// An export is the agent's export of a disk that the host cannot read.
type export struct{ *upperdir.Dir }

func (e export) open(string) (tree.Node, error) { return e.Root(), nil }

// Take ends the processes of s, takes the changes of s, and ends s. diskOf returns the disk of a
// machine that another process has started. If diskOf fails, or is nil and the host cannot read the
// disk, the agent exports it. With soon, Take does not wait for the end of s if the guest cannot write
// to the changes any longer: then it has exported them.
func Take(ctx context.Context, s *sandbox.Sandbox, diskOf func(context.Context) (*os.File, error),
	b Bounds, soon bool) (*Changes, error) {
	ctx, cancel := context.WithTimeout(ctx, TimeLimit)
	defer cancel()
	defer s.Guard(ctx)()
	res, err := s.Client().StateFreeze(ctx)
	if err != nil {
		return nil, s.CauseOf(err)
	}
	c := &Changes{Cwd: res.Cwd, Env: res.Env, upper: res.Upper, bounds: b}
	if err := c.check(s.ID()); err != nil {
		return nil, err
	}
	if diskOf != nil {
		if f, err := diskOf(ctx); err == nil {
			c.source = disk{f, int64(s.Shape().Disk), b.ext4()}
		}
	}
	if c.source == nil {
		if c.source, err = sourceOf(ctx, s, b); err != nil {
			return nil, err
		}
	}
	// Its changes are in the file, and its CPU is needed.
	if _, exported := c.source.(export); exported && soon {
		s.CloseSoon()
	} else {
		_ = s.Close()
	}
	return c, nil
}

// sourceOf returns the source of the changes of s. Its disk is frozen.
func sourceOf(ctx context.Context, s *sandbox.Sandbox, b Bounds) (source, error) {
	if s.HasDisk() {
		f, err := s.Disk()
		if err != nil {
			return nil, err
		}
		return disk{f, int64(s.Shape().Disk), b.ext4()}, nil
	}
	dir, err := b.Dir.MkdirAll("sandboxes")
	if err != nil {
		return nil, err
	}
	var u *upperdir.Dir
	err = s.Client().Export(ctx, func(in io.Reader) (err error) {
		u, err = upperdir.Read(ctx, in, dir, b.upper(s.Shape().Disk))
		return err
	})
	if err != nil {
		if u != nil {
			err = errors.Join(err, u.Close())
		}
		return nil, s.CauseOf(err)
	}
	if u == nil {
		return nil, turnstone.Errorf(op, turnstone.KindIntegrity, string(s.ID()),
			"its agent exported nothing")
	}
	return export{u}, nil
}

// OfPaused returns a paused machine's changes: from f, its disk or its agent's export, with upper
// from Sandbox.Pause. The Changes take ownership of f.
func OfPaused(ctx context.Context, s *sandbox.Sandbox, f *os.File, upper, cwd string, env []string,
	b Bounds) (*Changes, error) {
	c := &Changes{Cwd: cwd, Env: env, upper: upper, bounds: b}
	var err error
	if upper == sandbox.UpperIsExport {
		c.upper = "upper"
		c.source, err = readExport(ctx, f, s.Shape().Disk, b)
		_ = f.Close()
	} else {
		c.source = disk{f, int64(s.Shape().Disk), b.ext4()}
	}
	if err != nil {
		return nil, err
	}
	if err := c.check(s.ID()); err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

// readExport reads an export that another process has spooled.
func readExport(ctx context.Context, f *os.File, size turnstone.Bytes, b Bounds) (source, error) {
	dir, err := b.Dir.MkdirAll("sandboxes")
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	u, err := upperdir.Read(ctx, io.NewSectionReader(f, 0, st.Size()), dir, b.upper(size))
	if err != nil {
		return nil, err
	}
	return export{u}, nil
}

// Apply applies the changes to the tree base, without the files that belong to the machine. It may
// be called more than once.
func (c *Changes) Apply(ctx context.Context, w tree.Writer, base turnstone.TreeRef,
	opts layer.Options) (
	turnstone.TreeRef, layer.Stats, error) {
	upper, err := c.source.open(c.upper)
	if err != nil {
		return turnstone.TreeRef{}, layer.Stats{}, err
	}
	return layer.Apply(ctx, w, base, upper, c.bounds.layer(opts))
}

// Close releases the files.
func (c *Changes) Close() error { return c.source.Close() }

// Bounds of a shell session, equal to the agent's: no turn could begin with a larger session.
const (
	maxCwd  = 4095
	maxEnv  = 1 << 20 // bytes
	maxVars = 1 << 16
)

// check rejects values that the agent never sends.
func (c *Changes) check(id turnstone.SandboxID) error {
	fail := func(why string) error {
		return turnstone.NewError(op, turnstone.KindIntegrity, string(id),
			errors.New("its agent names "+why))
	}
	if c.upper != "upper" && c.upper != "upper2" || !strings.HasPrefix(c.Cwd, "/") ||
		len(c.Cwd) > maxCwd || strings.IndexByte(c.Cwd, 0) >= 0 {
		return fail("an impossible directory")
	}
	total := 0
	for _, kv := range c.Env {
		if total += len(kv) + 1; strings.IndexByte(kv, '=') < 1 || strings.IndexByte(kv, 0) >= 0 {
			return fail("an impossible variable")
		}
	}
	if total > maxEnv || len(c.Env) > maxVars {
		return fail("an environment that is too large")
	}
	return nil
}
