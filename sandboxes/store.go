// Package sandboxes keeps sandboxes that outlive the command that created them. Each sandbox has a
// folder in the state directory, named by its ID:
//
//	state.json   the sandbox's description (Info)
//	lock         locked by the holder during its whole life
//	wire.sock    the holder's socket for connections of the wire
//	control.sock the holder's socket for requests to the whole machine (Control)
//	channel.sock the holder's socket for encrypted channels to the agent (Store.OpenChannel)
//	watch.sock   the holder's socket that reports the sandbox's state (Store.Watch)
//	log          the holder's log
//
// The holder is a separate process that owns the machine and relays connections to the sandbox's
// agent. It copies bytes without interpreting them.
package sandboxes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/ownsocket"
	"turnstone.dev/turnstone/internal/statedir"
)

// A Store manages the sandboxes of a state directory. Its methods are safe for concurrent use, also
// by several processes.
type Store struct {
	dir string // the folder of the sandboxes' folders
	// Holder is required by Create and Fork.
	Holder Holder
	// KillAfter bounds the time in which a holder ends after a request.
	KillAfter time.Duration
}

// A Holder is a command that calls Hold. Its fields are those of exec.Cmd: Args begins with the
// name of the process. The store appends "--home DIR ID" to Args: the state directory and the
// sandbox. Env is added to the environment of the running process.
type Holder struct {
	Path string
	Args []string
	Env  []string
}

// NewStore returns the Store of the state directory at dir. It has no Holder.
func NewStore(dir string) *Store {
	return &Store{dir: filepath.Join(dir, "sandboxes"), KillAfter: 10 * time.Second}
}

// Prefixes of folders that are not yet, or no longer, a sandbox's folder.
const (
	newPrefix   = ".new-"
	gonePrefix  = ".gone-"
	sparePrefix = ".spare-"
)

// Dir returns the folder that contains the sandboxes' folders.
func (s *Store) Dir() string { return s.dir }

// path returns the folder of a sandbox.
func (s *Store) path(id turnstone.SandboxID) string { return filepath.Join(s.dir, string(id)) }

// List returns all sandboxes, oldest first. A sandbox whose holder has died is first marked as
// failed.
func (s *Store) List(ctx context.Context) ([]Info, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, turnstone.NewError("sandbox.list", turnstone.KindUnavailable, s.dir, err)
	}
	infos := []Info{}
	for _, e := range entries { // sorted, and IDs sort by time
		if err := ctx.Err(); err != nil {
			return nil, canceled(ctx, "sandbox.list")
		}
		if !e.IsDir() || !idForm.MatchString(e.Name()) {
			continue
		}
		i, err := s.read(turnstone.SandboxID(e.Name()))
		if turnstone.KindOf(err) == turnstone.KindNotFound {
			continue // removed meanwhile
		}
		if err != nil {
			i = Info{ID: turnstone.SandboxID(e.Name()), State: StateFailed, Reason: err.Error()}
		}
		infos = append(infos, i)
	}
	s.askAll(infos)
	return infos, nil
}

// Get returns the sandbox with this ID. The error is of kind KindNotFound if there is none, and of
// kind KindIntegrity if its state.json is damaged.
func (s *Store) Get(id turnstone.SandboxID) (Info, error) {
	i, err := s.read(id)
	if err != nil {
		return i, err
	}
	return s.ask(i), nil
}

// Has reports whether there is a sandbox with this ID, without a question to its holder.
func (s *Store) Has(id turnstone.SandboxID) bool {
	if !idForm.MatchString(string(id)) {
		return false
	}
	_, err := os.Lstat(filepath.Join(s.path(id), stateFile))
	return !errors.Is(err, fs.ErrNotExist)
}

// read is Get without a question to the holder: a sandbox in which commands run is ready.
func (s *Store) read(id turnstone.SandboxID) (Info, error) {
	if !idForm.MatchString(string(id)) {
		return Info{}, notFound(string(id))
	}
	dir := s.path(id)
	for try := 0; ; try++ {
		i, err := readInfo(dir, id)
		if errors.Is(err, fs.ErrNotExist) {
			return Info{}, notFound(string(id))
		}
		if err != nil {
			return Info{}, turnstone.NewError("sandbox.read", turnstone.KindIntegrity,
				string(id)+": state.json",
				err).WithHint(fmt.Sprintf("remove the sandbox with turn sandbox rm %s", id))
		}
		if i.State.Final() {
			return i, nil
		}
		found, err := s.bury(dir, id)
		if errors.Is(err, fs.ErrNotExist) {
			return Info{}, notFound(string(id)) // removed meanwhile
		}
		if found != nil || err != nil {
			return *cmp.Or(found, &i), err
		}
		// The lock is held by the holder, or by another reader until its write is on the disk.
		if try == 1000 || i.Holder.alive() {
			return i, nil
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// bury records that a sandbox's holder has died if the lock is free. It returns nil if the lock is
// held, and fs.ErrNotExist if the sandbox is removed at any moment of this.
func (s *Store) bury(dir string, id turnstone.SandboxID) (*Info, error) {
	if _, err := os.Stat(filepath.Join(dir, lockFile)); err != nil { // TryAcquire would make one
		return nil, err
	}
	lock, err := statedir.TryAcquire(filepath.Join(dir, lockFile))
	if lock == nil || err != nil {
		return nil, err
	}
	defer lock.Release()
	i, err := readInfo(dir, id)
	if err != nil || i.State.Final() {
		return &i, err
	}
	err = i.apply(eventHolderDied, "its holder process was killed, or the computer was restarted"+
		i.Session.lost())
	if err != nil {
		return nil, err
	}
	_ = os.Remove(filepath.Join(dir, socketFile))
	return &i, writeInfo(dir, i)
}

// Find returns the sandbox that ref names: an ID, a unique prefix of an ID, or a name. Of several
// sandboxes with the same name Find returns the running sandbox, or else the newest. The error is
// of kind KindNotFound, or KindInvalid if ref is ambiguous.
func (s *Store) Find(ctx context.Context, ref string) (Info, error) {
	if idForm.MatchString(ref) {
		return s.Get(turnstone.SandboxID(ref))
	}
	all, err := s.List(ctx)
	if err != nil {
		return Info{}, err
	}
	var named, begun []Info
	for _, i := range all {
		if i.Name == ref && ref != "" {
			named = append(named, i)
		}
		if len(ref) > len("sb_") && strings.HasPrefix(string(i.ID), ref) {
			begun = append(begun, i)
		}
	}
	if n := slices.IndexFunc(named, func(i Info) bool { return !i.State.Final() }); n >= 0 {
		return named[n], nil
	}
	switch {
	case len(named) > 0:
		return named[len(named)-1], nil
	case len(begun) == 1:
		return begun[0], nil
	case len(begun) > 1:
		return Info{}, turnstone.Errorf("sandbox.find", turnstone.KindInvalid, "sandbox "+ref,
			"%d sandboxes have this prefix", len(begun)).
			WithHint("write more of the ID, as turn sandbox ls lists it")
	}
	return Info{}, notFound(ref)
}

// Dial opens a connection of the wire to the sandbox's agent. The error is of kind KindUnavailable
// during the sandbox's creation, and KindDead when the sandbox has ended.
func (s *Store) Dial(ctx context.Context, id turnstone.SandboxID) (net.Conn, error) {
	c, err := s.dial(ctx, id, socketFile)
	if err != nil {
		return nil, err // not a typed nil
	}
	return c, nil
}

// dial connects to one of a sandbox's sockets.
func (s *Store) dial(ctx context.Context, id turnstone.SandboxID,
	socket string) (*net.UnixConn, error) {
	i, err := s.read(id)
	if err != nil {
		return nil, err
	}
	if i.Paused && socket != controlFile && !i.State.Final() {
		return nil, pausedError(i.Title())
	}
	e := turnstone.NewError("sandbox.dial", turnstone.KindDead, "sandbox "+i.Title(), nil)
	switch i.State {
	case StateCreating:
		e.Kind, e.Err, e.Hint = turnstone.KindUnavailable, errors.New("it is still being created"),
			"try again in a few seconds"
		return nil, e
	case StateStopped, StateFailed:
		e.Err = fmt.Errorf("it is %s", i.State)
		if i.Reason != "" {
			e.Err = fmt.Errorf("it is %s: %s", i.State, i.Reason)
		}
		e.Hint = "create a new sandbox with turn sandbox create"
		return nil, e
	}
	c, err := ownsocket.Dial(ctx, s.path(id), socket)
	if err == nil {
		return c, nil
	}
	if ctx.Err() != nil {
		return nil, canceled(ctx, "sandbox.dial")
	}
	// The sandbox may have ended meanwhile.
	if now, getErr := s.read(id); getErr == nil && now.State.Final() {
		return s.dial(ctx, id, socket)
	}
	e.Kind, e.Err, e.Hint = turnstone.KindUnavailable, err,
		"its holder does not answer; see its log "+filepath.Join(s.path(id), logFile)
	return nil, e
}

// Stop ends a sandbox's machine in good order and waits for its end. A sandbox that has ended is
// unchanged. What was done in a session's sandbox becomes a turn first; if that fails, the sandbox
// continues: see Discard.
func (s *Store) Stop(ctx context.Context, id turnstone.SandboxID) error {
	lock, err := s.stop(ctx, id)
	lock.Release()
	return err
}

// Remove stops a sandbox, as Stop does, and removes its folder.
func (s *Store) Remove(ctx context.Context, id turnstone.SandboxID) error {
	lock, err := s.stop(ctx, id)
	if err != nil && turnstone.KindOf(err) != turnstone.KindIntegrity {
		return err
	}
	defer lock.Release()
	return s.discard(id)
}

// discard removes a sandbox's folder atomically for all readers. The caller holds the lock.
func (s *Store) discard(id turnstone.SandboxID) error {
	gone := filepath.Join(s.dir, gonePrefix+string(id))
	err := os.Rename(s.path(id), gone)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = os.RemoveAll(gone)
	}
	if err != nil {
		return turnstone.NewError("sandbox.remove", turnstone.KindUnavailable, string(id), err)
	}
	return nil
}

// stop is halt after the last turn of a session's sandbox.
func (s *Store) stop(ctx context.Context, id turnstone.SandboxID) (*statedir.Lock, error) {
	if err := s.commitLast(ctx, id); err != nil {
		return nil, err
	}
	return s.halt(ctx, id)
}

// halt makes the holder end, by force after KillAfter, and returns the lock. An error of kind
// KindIntegrity is returned together with the lock.
func (s *Store) halt(ctx context.Context, id turnstone.SandboxID) (*statedir.Lock, error) {
	i, err := s.read(id)
	if err != nil && turnstone.KindOf(err) != turnstone.KindIntegrity {
		return nil, err
	}
	if err == nil && !i.State.Final() {
		if err := i.Holder.signal(syscall.SIGTERM); err != nil {
			return nil, stopError(id, err, "")
		}
	}
	lock, waitErr := s.await(ctx, id)
	if waitErr == nil || ctx.Err() != nil || turnstone.KindOf(waitErr) == turnstone.KindNotFound {
		return lock, errors.Join(waitErr, err)
	}
	if err != nil { // so the holder is unknown
		return nil, stopError(id, errors.New("its state.json is damaged, and a process holds it"),
			"end the process that holds it: fuser "+filepath.Join(s.path(id), lockFile))
	}
	if err := i.Holder.signal(syscall.SIGKILL); err != nil {
		return nil, stopError(id, err, "")
	}
	if lock, err = s.await(ctx, id); err != nil {
		return nil, err
	}
	lock.Release() // read takes the lock to record how the sandbox ended
	if _, err := s.read(id); err != nil {
		return nil, err
	}
	return s.await(ctx, id)
}

// await waits for a sandbox's lock, at most KillAfter.
func (s *Store) await(ctx context.Context, id turnstone.SandboxID) (*statedir.Lock, error) {
	ctx, cancel := context.WithTimeout(ctx, s.KillAfter)
	defer cancel()
	lock, err := statedir.Acquire(ctx, filepath.Join(s.path(id), lockFile), nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, notFound(string(id))
	}
	return lock, err
}

func stopError(id turnstone.SandboxID, err error, hint string) error {
	return turnstone.NewError("sandbox.stop", turnstone.KindUnavailable, string(id), err).
		WithHint(hint)
}

// Log returns the end of the holder's log, at most max bytes, from the beginning of a line.
func (s *Store) Log(id turnstone.SandboxID, max int64) string { return logTail(s.path(id), max) }

func logTail(dir string, max int64) string {
	f, err := os.Open(filepath.Join(dir, logFile))
	if err != nil {
		return ""
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return ""
	}
	b := make([]byte, min(max, st.Size()))
	n, _ := f.ReadAt(b, st.Size()-int64(len(b)))
	text := string(b[:n])
	if int64(n) < st.Size() {
		_, text, _ = strings.Cut(text, "\n")
	}
	return strings.TrimSpace(text)
}

func notFound(ref string) error {
	return turnstone.Errorf("sandbox.find", turnstone.KindNotFound,
		fmt.Sprintf("sandbox %.80s", ref),
		"no such sandbox").WithHint("list the sandboxes with turn sandbox ls")
}

func canceled(ctx context.Context, op turnstone.Op) error {
	kind := turnstone.KindCanceled
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		kind = turnstone.KindTimeout
	}
	return turnstone.NewError(op, kind, "", context.Cause(ctx))
}
