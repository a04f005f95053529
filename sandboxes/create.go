package sandboxes

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/network"
	"turnstone.dev/turnstone/internal/secret"
	"turnstone.dev/turnstone/internal/statedir"
)

// A Spec describes a sandbox to create.
type Spec struct {
	// ID is the new sandbox's ID, which no other sandbox has; empty: a random one.
	ID turnstone.SandboxID `json:"-"`

	Name  string          `json:"name,omitempty"` // display name; may be empty
	Image string          `json:"image"`          // a template
	Env   []string        `json:"env,omitempty"`  // KEY=VALUE for all processes
	Shape turnstone.Shape `json:"shape"`
	// rules; only the holder keeps the values of secret headers
	Network   *turnstone.NetworkSpec `json:"network,omitempty"`
	Substrate string                 `json:"substrate"`
	TTL       time.Duration          `json:"ttl"` // time from ready to the stop; 0: never

	Cwd string `json:"cwd,omitempty"` // absolute directory of commands; empty: the template's
	// Stranger means that a caller of a server names the image: the host's user's credentials for
	// registries are used for it only if the host's configuration says so.
	Stranger bool `json:"stranger,omitempty"`

	// Secrets are NAME=VALUE for all processes. Only the sandbox itself keeps their values, and a
	// fork of the sandbox requires explicit consent.
	Secrets []string `json:"secrets,omitempty"`

	// Session is the session that the sandbox belongs to, and Branch its branch (default: main): the
	// sandbox starts on the branch's head, and what is done in it becomes a turn. A session is made
	// when it is new. Image may be empty: the session's.
	Session string `json:"session,omitempty"`
	Branch  string `json:"branch,omitempty"`
	// Belongs is the place of the sandbox of which this one is a fork.
	Belongs *SessionInfo `json:"belongs,omitempty"`

	On string `json:"on,omitempty"` // the turn whose state the sandbox starts from
	// Label describes the sandbox's purpose in a few words, such as "session research@main".
	Label string `json:"label,omitempty"`

	// Live requests a substrate whose sandboxes can be paused and cloned while running.
	Live bool `json:"live,omitempty"`

	// Spare means that nobody has asked for the sandbox yet: see Store.Prepare.
	Spare bool `json:"spare,omitempty"`

	// For a fork: the folder with the snapshot, the sandbox of the snapshot, and the names of its
	// secrets. The snapshot contains Env and Secrets already.
	From string `json:"from,omitempty"`
	// the template's image at that time; empty: the current image
	Root   turnstone.Digest    `json:"root,omitempty"`
	Parent turnstone.SandboxID `json:"parent,omitempty"`
	Holds  []string            `json:"holds,omitempty"`
	Sealed bool                `json:"sealed,omitempty"` // it has data of a sealed session
}

// secretNames returns the names of the secrets that the sandbox will hold.
func (s Spec) secretNames() []string {
	names := slices.Clone(s.Holds)
	for _, kv := range s.Secrets {
		name, _, _ := strings.Cut(kv, "=")
		names = append(names, name)
	}
	return names
}

// maxLabel bounds a sandbox's label in bytes.
const maxLabel = 200

// Check reports the first fault of the spec; the error is of kind KindInvalid.
func (s Spec) Check() error {
	fail := func(err error) error {
		return turnstone.NewError("sandbox.create", turnstone.KindInvalid, "sandbox", err)
	}
	if s.Name != "" {
		if err := CheckName(s.Name); err != nil {
			return err
		}
	}
	if err := s.Shape.Validate(); err != nil {
		return fail(err)
	}
	if len(s.Label) > maxLabel {
		return fail(fmt.Errorf("the label is longer than %d bytes", maxLabel))
	}
	if _, err := network.PolicyOf(s.Network); err != nil {
		return err
	}
	if s.ID != "" && !idForm.MatchString(string(s.ID)) {
		return fail(fmt.Errorf("%.80q is no sandbox's ID", s.ID))
	}
	if s.Cwd != "" && !path.IsAbs(s.Cwd) {
		return fail(errors.New("its directory for commands is not absolute"))
	}
	if s.TTL < 0 {
		return fail(fmt.Errorf("%s is not a valid TTL", s.TTL))
	}
	switch {
	case s.Branch != "" && s.Session == "":
		return fail(errors.New("a branch needs its session"))
	case s.Session != "" && (s.On != "" || s.From != ""):
		return fail(errors.New("a sandbox of a session starts from the session's head"))
	case s.Belongs != nil && s.From == "":
		return fail(errors.New("only a fork has another sandbox's place"))
	case s.Spare && (s.ID != "" || s.Name != "" || len(s.Env)+len(s.Secrets) > 0 || s.TTL != 0 ||
		s.Session != "" || s.On != "" || s.From != "" || s.Network != nil):
		return fail(errors.New("a spare sandbox has nothing of its user"))
	case s.Session != "":
		if _, err := secret.New(s.Secrets); err != nil {
			return err
		}
	}
	if s.Root != "" {
		if _, err := turnstone.ParseDigest(string(s.Root)); err != nil || s.From == "" {
			return fail(errors.New("only a fork specifies its template's image by digest"))
		}
	}
	if s.From != "" && (!filepath.IsAbs(s.From) || len(s.Env)+len(s.Secrets) > 0) {
		return fail(errors.New("a fork has an absolute path and the environment of its snapshot"))
	}
	for _, kv := range s.Secrets {
		if name, _, ok := strings.Cut(kv, "="); !ok || name == "" || strings.ContainsRune(kv, 0) {
			return fail(errors.New("a secret is not NAME=VALUE")) // without the secret's text
		}
	}
	for _, kv := range s.Env {
		if name, _, ok := strings.Cut(kv, "="); !ok || name == "" || strings.ContainsRune(kv, 0) {
			return fail(fmt.Errorf("%.80q is not NAME=VALUE", kv))
		}
	}
	return nil
}

// A report is a line that a holder sends to the process that started it.
type report struct {
	Progress string `json:"progress,omitempty"`
	Ready    *Info  `json:"ready,omitempty"`
	Fault    *fault `json:"fault,omitempty"`
	// Adopted is how long a spare machine took to get the settings of its user.
	Adopted time.Duration `json:"adopted,omitempty"`
	// Key is the key of a spare sandbox's channels; empty: it is made later.
	Key string `json:"key,omitempty"`
}

// A fault is a *turnstone.Error between two processes.
type fault struct {
	Op      turnstone.Op   `json:"op"`
	Kind    turnstone.Kind `json:"kind"`
	Subject string         `json:"subject,omitempty"`
	Hint    string         `json:"hint,omitempty"`
	Cause   string         `json:"cause,omitempty"`
}

func toFault(err error) *fault {
	var e *turnstone.Error
	if !errors.As(err, &e) {
		return &fault{Op: "sandbox.create", Kind: turnstone.KindInternal, Cause: err.Error()}
	}
	f := &fault{Op: e.Op, Kind: e.Kind, Subject: e.Subject, Hint: turnstone.HintOf(err)}
	if e.Err != nil {
		f.Cause = e.Err.Error()
	}
	return f
}

func (f *fault) err() error {
	e := turnstone.NewError(f.Op, f.Kind, f.Subject, nil).WithHint(f.Hint)
	if f.Cause != "" {
		e.Err = errors.New(f.Cause)
	}
	return e
}

// Create starts a holder for a new sandbox and returns when the sandbox is ready. progress is
// called for long operations. If ctx ends earlier, or the sandbox cannot be created, nothing of it
// remains; the error says why. Only if this process is killed before the end, the sandbox remains
// as failed.
func (s *Store) Create(ctx context.Context, spec Spec, progress func(string)) (Info, error) {
	if err := spec.Check(); err != nil {
		return Info{}, err
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return Info{}, createError(err)
	}
	s.sweep()
	return s.create(ctx, spec, progress)
}

func (s *Store) create(ctx context.Context, spec Spec, progress func(string)) (Info, error) {
	id := cmp.Or(spec.ID, turnstone.NewSandboxID())
	dir := filepath.Join(s.dir, newPrefix+string(id))
	err := os.Mkdir(dir, 0o700)
	if err == nil && exists(s.path(id)) { // whoever made it has removed dir before
		err = errors.Join(fs.ErrExist, os.Remove(dir))
	}
	if errors.Is(err, fs.ErrExist) {
		return Info{}, turnstone.Errorf("sandbox.create", turnstone.KindInvalid,
			"sandbox "+string(id), "exists already")
	}
	if err != nil {
		return Info{}, createError(err)
	}
	h, err := s.startHolder(id, dir, spec)
	if err != nil {
		_ = os.RemoveAll(dir)
		return Info{}, createError(err)
	}
	defer context.AfterFunc(ctx, func() { h.interrupt(s.KillAfter) })()
	r, err := h.follow(progress)
	if ctx.Err() != nil {
		h.interrupt(s.KillAfter) // it may have become ready at the last moment
		<-h.ended
		_ = s.Remove(context.WithoutCancel(ctx), id)
		_ = os.RemoveAll(dir)
		return Info{}, canceled(ctx, "sandbox.create")
	}
	if err != nil {
		<-h.ended
		_ = os.RemoveAll(dir) // it remains only if the holder rejected the spec or did not start
		_ = s.Remove(context.WithoutCancel(ctx), id)
		return Info{}, err
	}
	return *r.Ready, nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func createError(err error) error {
	var typed *turnstone.Error
	if errors.As(err, &typed) {
		return err
	}
	return turnstone.NewError("sandbox.create", turnstone.KindUnavailable, "sandbox", err)
}

// A starting is a holder as seen by the process that started it.
type starting struct {
	cmd     *exec.Cmd
	input   *os.File // of requests to a spare sandbox
	reports *os.File
	in      *bufio.Scanner // of reports
	dir     string
	ended   chan struct{} // closed when the holder has ended
}

// startHolder starts the store's Holder, in a new session, with its streams in the log.
func (s *Store) startHolder(id turnstone.SandboxID, dir string, spec Spec) (*starting, error) {
	if s.Holder.Path == "" {
		return nil, turnstone.Errorf("sandbox.create", turnstone.KindUnavailable, "sandbox",
			"the store has no holder").
			WithHint("set Store.Holder to a command that keeps sandboxes")
	}
	log, err := os.OpenFile(filepath.Join(dir, logFile),
		os.O_WRONLY|os.O_APPEND|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer w.Close()
	stdin, input, err := os.Pipe()
	if err != nil {
		_ = r.Close()
		return nil, err
	}
	defer stdin.Close()
	cmd := exec.Command(s.Holder.Path)
	cmd.Args = slices.Concat(s.Holder.Args, []string{"--home", filepath.Dir(s.dir), string(id)})
	cmd.Env = append(without(os.Environ(), spec.secretNames()), s.Holder.Env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, log, log
	cmd.ExtraFiles = []*os.File{w} // descriptor 3 of the holder
	cmd.SysProcAttr = ownSession()
	if err := cmd.Start(); err != nil {
		_, _ = r.Close(), input.Close()
		return nil, err
	}
	h := &starting{cmd: cmd, input: input, reports: r, in: bufio.NewScanner(r), dir: dir,
		ended: make(chan struct{})}
	h.in.Buffer(nil, maxReport)
	go func() { // the holder usually outlives this process; otherwise Wait reaps it
		_ = cmd.Wait()
		close(h.ended)
	}()
	go func() { // a long spec takes until the holder reads; one that ends says why in its log
		_ = h.send(spec)
		if !spec.Spare {
			_ = input.Close()
		}
	}()
	return h, nil
}

// send writes a line to the holder.
func (h *starting) send(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = h.input.Write(append(b, '\n'))
	return err
}

// without returns env without the variables of these names: the holder's environment is readable
// during its whole life.
func without(env, names []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return slices.Contains(names, name)
	})
}

// interrupt asks the holder to end and then kills it. It may be called twice.
func (h *starting) interrupt(patience time.Duration) {
	_ = h.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-h.ended:
	case <-time.After(patience):
		_ = h.cmd.Process.Kill()
	}
}

// maxReport bounds a line of a holder's reports in bytes.
const maxReport = 1 << 20

// follow reads the holder's reports until the sandbox is ready or has failed.
func (h *starting) follow(progress func(string)) (report, error) {
	defer func() { _ = h.reports.Close() }()
	return h.await(progress)
}

// await is follow for a holder that reports more afterwards.
func (h *starting) await(progress func(string)) (report, error) {
	for h.in.Scan() {
		var r report
		if err := json.Unmarshal(h.in.Bytes(), &r); err != nil {
			return r, createError(fmt.Errorf("its holder sent a malformed report: %w", err))
		}
		switch {
		case r.Fault != nil:
			return r, r.Fault.err()
		case r.Ready != nil:
			return r, nil
		case r.Progress != "" && progress != nil:
			progress(r.Progress)
		}
	}
	if err := h.in.Err(); errors.Is(err, os.ErrDeadlineExceeded) { // see Spare.ask
		return report{}, createError(err)
	}
	<-h.ended // the holder closed its end, so it has ended or will end
	e := turnstone.Errorf("sandbox.create", turnstone.KindDead, "sandbox",
		"its holder ended before it was ready (%s)", h.cmd.ProcessState)
	// The folder has one of two names, depending on the holder's progress.
	for _, dir := range []string{h.dir,
		filepath.Join(filepath.Dir(h.dir), strings.TrimPrefix(filepath.Base(h.dir), newPrefix))} {
		if tail := logTail(dir, 2000); tail != "" {
			e.Err = fmt.Errorf("%w; its log ends with:\n%s", e.Err, tail)
		}
	}
	return report{}, e
}

// reporter is the holder's side of the reports. The holder continues if the reader is gone.
type reporter struct{ w io.WriteCloser }

func (r reporter) send(p report) {
	if b, err := json.Marshal(p); err == nil {
		_, _ = r.w.Write(append(b, '\n'))
	}
}

func (r reporter) progress(what string) { r.send(report{Progress: what}) }

// sweep removes the remains of creations and removals that were killed.
func (s *Store) sweep() {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		dir := filepath.Join(s.dir, e.Name())
		switch {
		case strings.HasPrefix(e.Name(), gonePrefix):
			_ = os.RemoveAll(dir)
		case strings.HasPrefix(e.Name(), newPrefix), strings.HasPrefix(e.Name(), forkPrefix),
			strings.HasPrefix(e.Name(), sparePrefix):
			// The holder of a young folder may not have locked it yet.
			if st, err := e.Info(); err != nil || time.Since(st.ModTime()) < time.Minute {
				continue
			}
			lock, err := statedir.TryAcquire(filepath.Join(dir, lockFile))
			if lock != nil || errors.Is(err, fs.ErrNotExist) {
				_ = os.RemoveAll(dir)
			}
			lock.Release()
		}
	}
}
