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
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/store/tree"
)

// A builder writes spec's image to the empty file out.
type builder func(ctx context.Context, spec *Spec, out *os.File, tempDir string, log io.Writer,
	progress func(string)) (*built, error)

// Ensure returns the template called name. It builds the template if there is no image, or if its
// image is damaged. Concurrent calls, also in several processes, build it once; the others wait and
// report that through progress, which may be nil. A build takes up to a minute and needs a network;
// otherwise Ensure reads a manifest and stats one file. After an error, or when ctx ends, no
// partial build remains.
func (s *Store) Ensure(ctx context.Context, name string,
	progress func(string)) (*turnstone.Template, error) {
	spec, err := s.Resolve(ctx, name, progress)
	if err != nil {
		return nil, err
	}
	return s.ensure(ctx, spec, progress)
}

// BuildOptions configure Build.
type BuildOptions struct {
	// Lock builds without the lock beside the spec, if there is one, and writes a new lock. Only a
	// spec in a file has a lock.
	Lock     bool
	Progress func(string)               // gets a short description of each action; may be nil
	Events   func(turnstone.BuildEvent) // gets the build's progress; may be nil
}

// Build builds the requested template: a known template by its name, or the spec at a path (a
// folder with a template.toml, or such a file), which is registered under its name after a
// successful build. A path contains a slash, ends in ".toml", or is ".". A spec cannot have the
// name of a built-in template. A registered spec of the same name is replaced. With a template.lock
// beside the spec, the build uses the versions in the lock, and fails with kind Integrity if its
// files differ.
func (s *Store) Build(ctx context.Context, nameOrPath string,
	opts BuildOptions) (*turnstone.Template, error) {
	invalid := func(hint, format string, args ...any) error {
		return turnstone.Errorf("template.build", turnstone.KindInvalid, nameOrPath,
			format, args...).WithHint(hint)
	}
	with := *s
	with.events = opts.Events
	s = &with
	if _, image := s.imageReference(nameOrPath); !isPath(nameOrPath) ||
		image && !exists(nameOrPath) {
		if opts.Lock {
			return nil, invalid("name the folder of a spec, such as ./mine",
				"is not a spec in a file, and cannot have a lock")
		}
		return s.Ensure(ctx, nameOrPath, opts.Progress)
	}
	spec, err := readSpec(nameOrPath)
	if err != nil {
		return nil, err
	}
	if _, err := fs.Stat(s.builtin, spec.Name); err == nil {
		return nil, invalid("give the spec another name",
			"%s is the name of a built-in template", spec.Name)
	}
	lock := lockFits
	if opts.Lock {
		lock = func(spec *Spec) error { return s.writeLock(ctx, nameOrPath, spec, opts.Progress) }
	}
	return s.buildSpec(ctx, spec, lock, opts.Progress)
}

// buildSpec builds a spec, and registers it after success.
func (s *Store) buildSpec(ctx context.Context, spec *Spec, lock func(*Spec) error,
	progress func(string)) (*turnstone.Template, error) {
	if err := s.pullBase(ctx, spec, progress); err != nil {
		return nil, err
	}
	written := *spec // its base may change later, and provide other values
	if err := s.resolve(spec); err != nil {
		return nil, err
	}
	if err := lock(spec); err != nil {
		return nil, err
	}
	t, err := s.ensure(ctx, spec, progress)
	if err != nil {
		return nil, err
	}
	written.Lock = spec.Lock
	if err := writeJSON(s.specPath(spec.Name), written); err != nil {
		return nil, turnstone.NewError("template.build", turnstone.KindUnavailable, spec.Name, err)
	}
	return t, nil
}

// NamesOf returns the name of the spec at path, a file or its folder, and that of the template or the
// image that is its base; a release of Debian has none. The error is that of Build.
func NamesOf(path string) (name, base string, err error) {
	spec, err := readSpec(path)
	if err != nil {
		return "", "", err
	}
	if base = strings.TrimPrefix(spec.Base, ociBase); strings.HasPrefix(spec.Base, debianBase) {
		base = ""
	}
	return spec.Name, base, nil
}

// isPath reports whether a user's argument is the path of a spec, and not a name.
func isPath(nameOrPath string) bool {
	return strings.ContainsRune(nameOrPath, '/') || strings.HasSuffix(nameOrPath, ".toml") ||
		nameOrPath == "."
}

// readSpec reads the spec in a folder, or in a file. A spec without a name gets the folder's name.
// The files that it names must be below the folder; symlinks that lead out of it are rejected.
func readSpec(path string) (*Spec, error) {
	invalid := func(err error) error {
		return turnstone.NewError("template.parse", turnstone.KindInvalid, path, err).
			WithHint("name a folder with a " + specFile + ", or such a file")
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, invalid(err)
	}
	dir, file := abs, specFile
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
	if !fi.Mode().IsRegular() || fi.Size() > maxSpec {
		return nil, invalid(fmt.Errorf("%s is not a regular file of at most %d bytes",
			file, maxSpec))
	}
	b, err := fs.ReadFile(root.FS(), file)
	if err != nil {
		return nil, invalid(err)
	}
	spec, err := Parse("", b, root.FS())
	if err != nil && strings.Contains(err.Error(), `"name" is missing`) {
		spec, err = Parse(filepath.Base(dir), b, root.FS())
	}
	// names the file as the caller does
	if fault := (*turnstone.Error)(nil); errors.As(err, &fault) {
		_, line, _ := strings.Cut(fault.Subject, specFile)
		fault.Subject = path + line
		if dir == abs {
			fault.Subject = filepath.Join(path, specFile) + line
		}
	}
	if err != nil {
		return nil, err
	}
	spec.Lock, err = readLock(root.FS())
	return spec, err
}

func (s *Store) ensure(ctx context.Context, spec *Spec, progress func(string)) (*turnstone.Template,
	error) {
	say := func(what string) {
		if progress != nil {
			progress(spec.label() + ": " + what)
		}
	}
	if t, err := s.ready(ctx, spec); err == nil {
		return t, nil
	}
	if err := s.canBuild(spec); err != nil {
		return nil, err
	}
	if err := s.makeDirs(); err != nil {
		return nil, err
	}
	digest := spec.Digest()
	lock, err := statedir.Acquire(ctx, s.lockPath(digest),
		func() { say("waiting for another process that builds it") })
	if err != nil {
		return nil, err
	}
	defer lock.Release()
	t, err := s.ready(ctx, spec) // another process may have built it
	switch {
	case err == nil:
		return t, nil
	case ctx.Err() != nil:
		return nil, turnstone.NewError("template.ensure", turnstone.KindCanceled, spec.Name,
			ctx.Err())
	case !errors.Is(err, fs.ErrNotExist):
		say(fmt.Sprintf("the image is damaged (%v), building it again", err))
	}
	if err := s.sweep(digest); err != nil {
		return nil, s.failure(spec, err)
	}
	if low := spec.below(); low != nil {
		base, err := s.ensure(ctx, low, progress)
		if err != nil {
			return nil, err
		}
		say("building on " + spec.Base + " (only this time)")
		if err := s.makeLayer(ctx, spec, base, say); err != nil {
			return nil, s.failure(spec, err)
		}
		return s.load(ctx, spec, false)
	}
	if !spec.image {
		say("building from " + spec.Base + " (up to some minutes, only this time)")
	}
	if err := s.make(ctx, spec, say); err != nil {
		return nil, s.failure(spec, err)
	}
	if t, err = s.load(ctx, spec, false); err == nil {
		// An image's index finds the files that turns have of it. If it cannot be created now, a
		// later request for the tree reports why.
		if x, err := s.treeIndex(ctx, t); err == nil {
			_ = x.Close()
		}
	}
	return t, err
}

// ready is load that also checks whether the context store has a layered template's files.
func (s *Store) ready(ctx context.Context, spec *Spec) (*turnstone.Template, error) {
	t, err := s.load(ctx, spec, false)
	if err != nil || s.layers == nil {
		return t, err
	}
	for _, l := range t.Layers {
		has, err := s.layers.Has(ctx, l)
		if err != nil {
			return nil, err
		}
		if !has {
			return nil, errors.New("its files are not in the context store")
		}
	}
	return t, nil
}

// setAside clears the place for a new image, with the digest root, in the folder tmp. A damaged
// image of the same spec may contain the only copy of files that turns left, most of them intact:
// it is kept under its own digest unless the new image has the same bytes.
func (s *Store) setAside(spec turnstone.Digest, tmp string, root turnstone.Digest) error {
	dir := s.imageDir(spec)
	var was manifest
	b, err := os.ReadFile(filepath.Join(dir, "manifest.json"))
	index := filepath.Join(dir, "root.tree")
	if err != nil || json.Unmarshal(b, &was) != nil || !exists(index) ||
		!exists(filepath.Join(dir, "root.erofs")) || !validDigest(was.Root.Digest) {
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

// A work is a build in progress.
type work struct {
	s      *Store
	spec   *Spec
	digest turnstone.Digest
	tmp    string // the folder that becomes the template's
	log    *os.File
	start  time.Time
}

// begin creates the files that a build writes. The caller holds the digest's lock, and ends the
// work with the build's result.
func (s *Store) begin(spec *Spec) (*work, error) {
	w := &work{s: s, spec: spec, digest: spec.Digest(), start: time.Now()}
	w.tmp = s.tmpDir(w.digest)
	if err := os.Mkdir(w.tmp, 0o700); err != nil {
		return nil, err
	}
	var err error
	w.log, err = os.OpenFile(s.logPath(w.digest), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		_ = os.Remove(w.tmp)
		return nil, err
	}
	fmt.Fprintf(w.log, "building template %s (%s) at %s\n", spec.Name, w.digest,
		w.start.UTC().Format(time.RFC3339))
	return w, nil
}

func (w *work) end(err error) {
	if err != nil {
		fmt.Fprintf(w.log, "failed after %s: %v\n",
			time.Since(w.start).Round(time.Millisecond), err)
	}
	_ = w.log.Close()
	_ = os.RemoveAll(w.tmp)
}

// publish writes the manifest and moves the folder to its final path.
func (w *work) publish(m *manifest) error {
	m.Format, m.Digest, m.Name = manifestVersion, w.digest, w.spec.Name
	if m.Built.IsZero() {
		m.Built, m.BuildTime = w.start.UTC().Truncate(time.Second), time.Since(w.start)
	}
	if err := writeJSON(filepath.Join(w.tmp, "manifest.json"), m); err != nil {
		return err
	}
	if err := w.s.setAside(w.digest, w.tmp, m.Root.Digest); err != nil {
		return err
	}
	if err := os.Rename(w.tmp, w.s.imageDir(w.digest)); err != nil {
		return err
	}
	fmt.Fprintf(w.log, "built in %s\n", m.BuildTime.Round(time.Millisecond))
	return filestamp.SyncDir(w.s.dir)
}

// make builds spec's image in a temporary folder and moves it to its final path. The caller holds
// the digest's lock.
func (s *Store) make(ctx context.Context, spec *Spec, say func(string)) (err error) {
	w, err := s.begin(spec)
	if err != nil {
		return err
	}
	defer func() { w.end(err) }()
	root := filepath.Join(w.tmp, "root.erofs")
	out, err := os.OpenFile(root, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return err
	}
	b, err := s.buildRoot(ctx, w, out, say)
	if e := out.Close(); err == nil {
		err = e
	}
	if err != nil {
		return err
	}
	if !spec.image { // its image was checked when it was unpacked
		if err := checkUser(root, spec.User); err != nil {
			return err
		}
	}
	m := &manifest{Packages: b.packages}
	if m.Root, err = filestamp.Of(ctx, root); err != nil {
		return err
	}
	if spec.Lock != nil {
		t := &turnstone.Template{Name: spec.Name, Root: root, RootDigest: m.Root.Digest}
		ref, err := s.Tree(ctx, t, tree.NewHasher())
		if err != nil {
			return err
		}
		if err := spec.Lock.verify(spec.Name, &Lock{FSHash: ref.Hash, Apt: m.Packages}); err != nil {
			return err
		}
	}
	fmt.Fprintf(w.log, "%d bytes, %s\n", m.Root.Size, m.Root.Digest)
	return w.publish(m)
}

// buildRoot builds a root image into out. Debian's packages come through a cache, which still has
// them after an interrupted build.
func (s *Store) buildRoot(ctx context.Context, w *work, out *os.File,
	say func(string)) (*built, error) {
	tell := &teller{name: w.spec.Name, start: w.start, events: s.events}
	saying := func(what string) { say(what); tell.say(what) }
	if strings.HasPrefix(w.spec.Base, ociBase) {
		return s.buildOCI(ctx, w.spec, out, w.tmp, w.log, saying)
	}
	spec := *w.spec
	spec.NoNetwork = false // only commands are without a network
	reg, addr, err := s.openRegistry(&spec, w.log, tell)
	if err != nil {
		return nil, err
	}
	defer func() { _ = reg.Close() }()
	spec.proxy, spec.mirrors = reg.Proxy(addr.String()), s.sources.Mirrors()
	spec.programs = reg.Programs
	b, err := s.build(ctx, &spec, out, w.tmp, w.log, saying)
	if err == nil || ctx.Err() != nil || turnstone.KindOf(err) != turnstone.KindUnavailable {
		return b, err
	}
	switch p := reg.Problem(); turnstone.KindOf(p) { // apt knows less
	case turnstone.KindUnavailable, turnstone.KindTimeout, turnstone.KindExhausted:
		return nil, p
	}
	return nil, err
}

// sweep removes the remains of interrupted builds: those of this digest, whose lock the caller
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
			continue // not created by a build
		}
		lock, err := statedir.TryAcquire(s.lockPath(digest))
		if err != nil || lock == nil {
			continue // a build is in progress
		}
		_ = os.RemoveAll(path) // retried next time
		lock.Release()
	}
	return nil
}

// failure turns a build's error into an error with a hint.
func (s *Store) failure(spec *Spec, err error) error {
	out := turnstone.NewError("template.build", turnstone.KindUnavailable, "template "+spec.Name,
		err)
	var typed *turnstone.Error
	switch {
	case errors.As(err, &typed):
		out.Kind = typed.Kind
		if spec.image && err == error(typed) { // its name is long, and repeated in the cause
			out.Subject, out.Hint, out.Err = "image "+spec.Name, typed.Hint, typed.Err
		}
	case turnstone.IsFull(err):
		out.Kind, out.Hint = turnstone.KindExhausted,
			"free some disk space below "+s.dir+", or move TURN_HOME"
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		out.Kind = turnstone.KindCanceled
	}
	if turnstone.HintOf(out) == "" && out.Kind != turnstone.KindCanceled {
		out.Hint = "the build's log is " + s.logPath(spec.Digest())
	}
	return out
}

func validDigest(d turnstone.Digest) bool {
	_, err := turnstone.ParseDigest(string(d))
	return err == nil
}
