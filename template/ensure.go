package template

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/home"
	"turnstone.dev/turnstone/stamp"
)

// A builder writes spec's image into the empty file out.
type builder func(ctx context.Context, spec *Spec, out *os.File, tempDir string, log io.Writer, progress func(string)) (*built, error)

// Ensure returns the template called name, which it builds when it is not built
// yet, or its image is damaged. Calls at once, in whatever processes, build it
// once; the others wait and say so through progress, which may be nil. A build
// takes up to a minute and a network; without one Ensure reads a manifest and asks
// for the size and times of one file. When it fails, or ctx ends, nothing
// half-built stays.
func (s *Store) Ensure(ctx context.Context, name string, progress func(string)) (*Template, error) {
	spec, err := s.Spec(name)
	if err != nil {
		return nil, err
	}
	return s.ensure(ctx, spec, progress)
}

// Build builds what is called for: a known template by its name, or the spec at a
// path (a folder with a template.toml, or such a file), which is registered under
// its name when the build was good. A path has a slash in it, or ends in ".toml",
// or is "." . The names of built-in templates are taken. A registered spec of the
// same name is replaced.
func (s *Store) Build(ctx context.Context, nameOrPath string, progress func(string)) (*Template, error) {
	if !strings.ContainsRune(nameOrPath, '/') && !strings.HasSuffix(nameOrPath, ".toml") && nameOrPath != "." {
		return s.Ensure(ctx, nameOrPath, progress)
	}
	spec, err := ReadSpec(nameOrPath)
	if err != nil {
		return nil, err
	}
	if _, err := fs.Stat(s.builtin, spec.Name); err == nil {
		return nil, &turnstone.Error{Op: "template.build", Kind: turnstone.Invalid, Subject: nameOrPath,
			Err: fmt.Errorf("%s is the name of a built-in template", spec.Name), Hint: "give the spec another name"}
	}
	t, err := s.ensure(ctx, spec, progress)
	if err != nil {
		return nil, err
	}
	if err := writeJSON(filepath.Join(s.dir, "specs", spec.Name+".json"), spec); err != nil {
		return nil, &turnstone.Error{Op: "template.build", Kind: turnstone.Unavailable, Subject: spec.Name, Err: err}
	}
	return t, nil
}

// ReadSpec reads the spec in a folder, or in a file. Without a name of its own the
// spec is called as the folder. The files that it names must be below the folder;
// symlinks that lead out of it are refused.
func ReadSpec(path string) (*Spec, error) {
	invalid := func(err error) error {
		return &turnstone.Error{Op: "template.parse", Kind: turnstone.Invalid, Subject: path, Err: err,
			Hint: "name a folder with a " + SpecFile + ", or such a file"}
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, invalid(err)
	}
	dir, file := abs, SpecFile
	fi, err := os.Stat(abs)
	if err != nil {
		return nil, invalid(err)
	}
	if !fi.IsDir() {
		dir, file = filepath.Split(abs)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, invalid(err)
	}
	defer root.Close()
	if fi, err = root.Stat(file); err != nil {
		return nil, invalid(err)
	}
	if !fi.Mode().IsRegular() || fi.Size() > MaxSpec {
		return nil, invalid(fmt.Errorf("%s is no regular file of at most %d bytes", file, MaxSpec))
	}
	b, err := fs.ReadFile(root.FS(), file)
	if err != nil {
		return nil, invalid(err)
	}
	spec, err := Parse("", b, root.FS())
	if err != nil && strings.Contains(err.Error(), `"name" is missing`) {
		spec, err = Parse(filepath.Base(dir), b, root.FS())
	}
	return spec, err
}

func (s *Store) ensure(ctx context.Context, spec *Spec, progress func(string)) (*Template, error) {
	say := func(what string) {
		if progress != nil {
			progress("template " + spec.Name + ": " + what)
		}
	}
	if t, err := s.load(ctx, spec, false); err == nil {
		return t, nil
	}
	if err := s.makeDirs(); err != nil {
		return nil, err
	}
	digest := spec.Digest()
	lock, err := home.Acquire(ctx, s.lockPath(digest), func() { say("waiting for another process that builds it") })
	if err != nil {
		return nil, err
	}
	defer lock.Release()
	t, err := s.load(ctx, spec, false) // another process may have built it
	switch {
	case err == nil:
		return t, nil
	case ctx.Err() != nil:
		return nil, &turnstone.Error{Op: "template.ensure", Kind: turnstone.Canceled, Subject: spec.Name, Err: ctx.Err()}
	case !errors.Is(err, fs.ErrNotExist):
		say(fmt.Sprintf("the kept image is not whole (%v), building it again", err))
	}
	if err := s.sweep(digest); err != nil {
		return nil, s.failure(spec, err)
	}
	say("building from " + spec.Base + " (a minute, only this time)")
	if err := s.make(ctx, spec, say); err != nil {
		return nil, s.failure(spec, err)
	}
	if t, err = s.load(ctx, spec, false); err == nil {
		// Files that turns have of an image are found by its index. Where it cannot be
		// made now, who asks for the tree says why.
		if x, err := s.treeIndex(ctx, t); err == nil {
			_ = x.Close()
		}
	}
	return t, err
}

// setAside makes room for a new image, with the digest root, that is in the folder
// tmp. An image that was built before of the same spec, and is damaged, may be the only
// place of files that turns left, most of which are whole: unless the new one has the
// same bytes, it stays, under its own digest.
func (s *Store) setAside(spec turnstone.Digest, tmp string, root turnstone.Digest) error {
	dir := s.imageDir(spec)
	var was manifest
	b, err := os.ReadFile(filepath.Join(dir, "manifest.json"))
	index := filepath.Join(dir, "root.tree")
	if err != nil || json.Unmarshal(b, &was) != nil || !exists(index) || !exists(filepath.Join(dir, "root.erofs")) || !validDigest(was.Root.Digest) {
		return os.RemoveAll(dir)
	}
	if was.Root.Digest == root {
		if err := os.Rename(index, filepath.Join(tmp, "root.tree")); err != nil {
			return err
		}
		return os.RemoveAll(dir)
	}
	aside := s.imageDir(was.Root.Digest)
	if exists(aside) {
		return os.RemoveAll(dir)
	}
	return os.Rename(dir, aside)
}

// make builds spec's image beside its place and moves it there. The caller holds
// the digest's lock.
func (s *Store) make(ctx context.Context, spec *Spec, say func(string)) (err error) {
	digest := spec.Digest()
	tmp := s.tmpDir(digest)
	if err := os.Mkdir(tmp, 0o700); err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	log, err := os.OpenFile(s.logPath(digest), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	start := time.Now()
	fmt.Fprintf(log, "building template %s (%s) at %s\n", spec.Name, digest, start.UTC().Format(time.RFC3339))
	defer func() {
		if err != nil {
			fmt.Fprintf(log, "failed after %s: %v\n", time.Since(start).Round(time.Millisecond), err)
		}
	}()
	root := filepath.Join(tmp, "root.erofs")
	out, err := os.OpenFile(root, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return err
	}
	b, err := s.build(ctx, spec, out, tmp, log, say)
	if e := out.Close(); err == nil {
		err = e
	}
	if err != nil {
		return err
	}
	m := manifest{Format: manifestVersion, Digest: digest, Packages: b.packages, Built: start.UTC().Truncate(time.Second)}
	if m.Root, err = stamp.Of(ctx, root); err != nil {
		return err
	}
	m.BuildTime = time.Since(start)
	if err := writeJSON(filepath.Join(tmp, "manifest.json"), m); err != nil {
		return err
	}
	if err := s.setAside(digest, tmp, m.Root.Digest); err != nil {
		return err
	}
	if err := os.Rename(tmp, s.imageDir(digest)); err != nil {
		return err
	}
	fmt.Fprintf(log, "built in %s: %d bytes, %s\n", m.BuildTime.Round(time.Millisecond), m.Root.Size, m.Root.Digest)
	return stamp.SyncDir(s.dir)
}

// sweep removes what interrupted builds left: this digest's, whose lock the caller
// holds, and those whose lock nobody holds.
func (s *Store) sweep(own turnstone.Digest) error {
	entries, err := os.ReadDir(filepath.Join(s.dir, "tmp"))
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := filepath.Join(s.dir, "tmp", e.Name())
		if e.Name() == own.Hex() {
			if err := os.RemoveAll(path); err != nil {
				return err
			}
			continue
		}
		digest, err := turnstone.ParseDigest("sha256:" + e.Name())
		if err != nil {
			continue // not ours
		}
		lock, err := home.TryAcquire(s.lockPath(digest))
		if err != nil || lock == nil {
			continue // being built
		}
		_ = os.RemoveAll(path) // it is tried again next time
		lock.Release()
	}
	return nil
}

// failure makes err, of a build, one that a user can act on.
func (s *Store) failure(spec *Spec, err error) error {
	out := &turnstone.Error{Op: "template.build", Kind: turnstone.Unavailable, Subject: "template " + spec.Name, Err: err}
	var typed *turnstone.Error
	switch {
	case errors.As(err, &typed):
		out.Kind = typed.Kind
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		out.Kind, out.Hint = turnstone.Exhausted, "free some disk space below "+s.dir+", or move TURN_HOME"
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		out.Kind = turnstone.Canceled
	}
	if turnstone.HintOf(out) == "" && out.Kind != turnstone.Canceled {
		out.Hint = "the build's log is " + s.logPath(spec.Digest())
	}
	return out
}

func validDigest(d turnstone.Digest) bool {
	_, err := turnstone.ParseDigest(string(d))
	return err == nil
}
