package sandboxes

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/forward"
	"turnstone.dev/turnstone/internal/ownsocket"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/sandboxes/performed"
	"turnstone.dev/turnstone/wire"
)

// A Machine is a configured machine of a sandbox. Its methods are safe for concurrent use.
type Machine interface {
	// Connect opens a new connection of the wire to the agent.
	Connect() (wire.LinkStream, error)
	// Done is closed when the machine has ended. Err then returns the reason, nil after Close.
	Done() <-chan struct{}
	Err() error
	// Close ends the machine at once and frees its resources.
	Close() error
}

// Details describe a started machine.
type Details struct {
	Template     turnstone.Digest
	TemplateSize turnstone.Bytes
	Substrate    string
	Isolation    string
	Workdir      string // working directory of the template's steps; empty: the agent's default
	User         string // user of the template's steps; empty: root
	Command      turnstone.ImageCommand

	Image   string       // the image, if the spec does not name it
	Session *SessionInfo // the place of a session's sandbox; the Machine is then a Committer
	Records string       // the folder for its commands; empty: in the sandbox's folder
	Room    func() error // an error if the host's disk is nearly full; nil: no check
}

// An Opener starts a sandbox's machine. progress is called for long operations.
type Opener func(ctx context.Context, id turnstone.SandboxID, spec Spec,
	progress func(string)) (Machine, Details, error)

// maxSpec bounds the holder's input in bytes.
const maxSpec = 16 << 20

// Hold is the main function of a holder: it creates the sandbox id, whose folder Create has made,
// and keeps it until ctx ends, its time is up or its machine dies. It reads the spec from in and
// writes reports to out; it closes both.
func (s *Store) Hold(ctx context.Context, id turnstone.SandboxID, open Opener, in io.ReadCloser,
	out io.WriteCloser, log *slog.Logger) error {
	tell := reporter{out}
	h := &holder{store: s, id: id, log: log, stop: make(chan struct{}),
		forwards: make(chan struct{}, maxForwarded)}
	err := h.create(ctx, open, in, tell)
	if err != nil {
		tell.send(report{Fault: toFault(err)})
	}
	_ = out.Close()
	if err != nil {
		log.Error("the sandbox was not created", "err", err)
		h.lock.Release()
		return err
	}
	h.keep(ctx)
	return nil
}

// A holder is the state of a sandbox's holder process.
type holder struct {
	store   *Store
	id      turnstone.SandboxID
	dir     string // the sandbox's folder
	log     *slog.Logger
	lock    *statedir.Lock
	machine Machine
	relay   *relay
	secret  *relay // of encrypted channels
	ctl     *control
	watched *watched
	due     *time.Timer // of the sandbox's stop; set before ctl

	recorder *performed.Recorder // of a session's sandbox; nil: none
	env      []string            // of the spec
	adopter  Adopter             // the machine, if it was a spare one; else nil
	adopted  time.Duration       // how long it took for its user's settings
	sockets  []*net.UnixListener // that listen already: see listen
	stop     chan struct{}       // closed when a client has asked for the end

	forwards   chan struct{} // connections to ports of the sandbox
	forwarding sync.WaitGroup
	ports      forward.Ports // of the sandbox

	still sync.RWMutex // locked while the machine has no link

	mu       sync.Mutex
	info     Info
	upper    string // for a paused machine
	ttl      time.Duration
	closed   bool  // nothing is left to commit
	commands int64 // that run
	followed int   // connections that have followed commands so far
}

// apply moves the sandbox to its next state and records it.
func (h *holder) apply(e event, reason string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	defer h.watched.tell()
	next := h.info
	if err := next.apply(e, reason); err != nil {
		return err
	}
	h.log.Info("state", "state", next.State, "event", e, "reason", reason)
	if err := next.write(h.dir, h.writer(e)); err != nil {
		return err
	}
	h.info = next
	h.count(h.commands)
	return nil
}

// writer returns the function that writes the state after an event. A claim waits for no disk: the
// machine does not survive a power loss anyway, and persist follows.
func (h *holder) writer(e event) func(string, []byte, os.FileMode) error {
	if h.adopter != nil && (e == "" || e == eventConfigured) {
		return filestamp.Replace
	}
	return filestamp.WriteFile
}

// count moves the sandbox between ready and running, in memory only. h.mu is held.
func (h *holder) count(commands int64) {
	h.commands = commands
	e := eventStarted
	if commands <= 0 {
		e = eventIdle
	}
	if _, ok := transitions[h.info.State][e]; ok {
		_ = h.info.apply(e, "") // possible, as just seen
	}
}

func (h *holder) create(ctx context.Context, open Opener, in io.ReadCloser, tell reporter) error {
	defer in.Close()
	lines := bufio.NewReader(in)
	spec, err := readSpec(lines)
	if err != nil {
		return err
	}
	if spec.Spare {
		if spec, open, err = h.spare(ctx, open, spec, lines, tell); err != nil {
			return err
		}
	}
	if err := h.register(ctx, spec); err != nil {
		return errors.Join(err, h.unregistered())
	}
	err = h.start(ctx, open, spec, tell)
	if err == nil {
		h.mu.Lock()
		ready := h.info
		h.mu.Unlock()
		tell.send(report{Ready: &ready, Adopted: h.adopted})
		h.persist()
		return nil
	}
	if h.machine != nil {
		_ = h.machine.Close()
	}
	event, reason := eventCreateFailed, err.Error()
	switch kind := turnstone.KindOf(err); {
	case ctx.Err() != nil:
		event, reason = eventStopRequested, "stopped during its creation"
	case kind == turnstone.KindInvalid || kind == turnstone.KindNotFound:
		// An invalid request leaves no sandbox to inspect or remove.
		return errors.Join(err, h.store.discard(h.id))
	}
	return errors.Join(err, h.apply(event, reason))
}

func readSpec(in *bufio.Reader) (Spec, error) {
	var spec Spec
	err := readLine(in, &spec)
	if err != nil {
		return spec, turnstone.NewError("sandbox.create", turnstone.KindInvalid, "sandbox", err).
			WithHint("use turn sandbox create instead of this internal command")
	}
	return spec, spec.Check()
}

// readLine decodes a line, which may end with the input.
func readLine(in *bufio.Reader, v any) error {
	var line []byte
	for {
		part, err := in.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > maxSpec:
			return fmt.Errorf("the request is longer than %d bytes", maxSpec)
		case err == nil, errors.Is(err, io.EOF) && len(line) > 0:
			return json.Unmarshal(line, v)
		case !errors.Is(err, bufio.ErrBufferFull):
			return err
		}
	}
}

// take takes the lock of the folder that Create or Prepare has made.
func (h *holder) take() error {
	if !idForm.MatchString(string(h.id)) {
		return notFound(string(h.id))
	}
	h.dir = filepath.Join(h.store.dir, newPrefix+string(h.id))
	lock, err := statedir.TryAcquire(filepath.Join(h.dir, lockFile))
	if err == nil && lock == nil {
		err = errors.New("its lock is held")
	}
	if err != nil {
		return createError(err)
	}
	h.lock = lock
	return nil
}

// register takes the sandbox's lock, writes its state and gives its folder the final name.
func (h *holder) register(ctx context.Context, spec Spec) error {
	if h.lock == nil {
		if err := h.take(); err != nil {
			return err
		}
	}
	unlock, err := h.store.lockNames(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if err := h.store.nameFree(ctx, spec.Name); err != nil {
		return err
	}
	self, err := thisProcess()
	if err != nil {
		return createError(err)
	}
	now := time.Now().UTC()
	h.info = Info{ID: h.id, Name: spec.Name, Label: spec.Label, Network: spec.Network.Bare(),
		State: StateCreating, Image: spec.Image, Root: spec.Root, Shape: spec.Shape,
		Created: now, Changed: now, Holder: self, Secrets: spec.secretNames(), Parent: spec.Parent,
		Version: turnstone.Version, Session: spec.Belongs, DataOf: cmp.Or(spec.DataOf, spec.Session)}
	h.ttl, h.env = spec.TTL, spec.Env
	if err := h.info.write(h.dir, h.writer("")); err != nil {
		return createError(err)
	}
	if err := os.Rename(h.dir, h.store.path(h.id)); err != nil {
		return createError(err)
	}
	h.dir = h.store.path(h.id)
	return nil
}

// lockNames prevents concurrent registrations of sandboxes. The lock is on the folder itself.
func (s *Store) lockNames(ctx context.Context) (unlock func(), err error) {
	d, err := os.Open(s.dir)
	if err != nil {
		return nil, createError(err)
	}
	for {
		held, err := lockFolder(d)
		if held {
			return func() { _ = d.Close() }, nil
		}
		if err != nil {
			_ = d.Close()
			return nil, createError(err)
		}
		select {
		case <-ctx.Done():
			_ = d.Close()
			return nil, canceled(ctx, "sandbox.create")
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// nameFree reports whether no running sandbox is called name.
func (s *Store) nameFree(ctx context.Context, name string) error {
	if name == "" {
		return nil
	}
	all, err := s.List(ctx)
	if err != nil {
		return err
	}
	for _, i := range all {
		if i.Name == name && !i.State.Final() {
			return turnstone.Errorf("sandbox.create", turnstone.KindInvalid, "name "+name,
				"%s has this name and is %s", i.ID, i.State).
				WithHint("choose another name, or run turn sandbox rm " + name)
		}
	}
	return nil
}

// start starts the machine and opens the sandbox to connections.
func (h *holder) start(ctx context.Context, open Opener, spec Spec, tell reporter) error {
	m, d, err := open(ctx, h.id, spec, tell.progress)
	if err != nil {
		return err
	}
	h.machine = m
	if err := h.belong(ctx, spec, d); err != nil {
		return err
	}
	if h.followed == 0 {
		if err := h.followFirst(ctx, d); err != nil {
			return err
		}
	}
	if err := h.listen(); err != nil {
		return err
	}
	sockets := h.sockets
	h.mu.Lock()
	h.info.Template, h.info.TemplateSize = d.Template, d.TemplateSize
	h.info.Substrate, h.info.Isolation = d.Substrate, d.Isolation
	h.info.Workdir, h.info.User = d.Workdir, d.User
	h.info.Expires = until(h.ttl)
	if h.due = time.NewTimer(h.ttl); h.ttl == 0 {
		h.due.Stop()
	}
	h.watched = newWatched(sockets[2], h.present, h.log)
	h.mu.Unlock()
	// The sockets must answer from the ready state on, and not before.
	if err := h.apply(eventConfigured, ""); err != nil {
		_, _, _ = sockets[0].Close(), sockets[1].Close(), sockets[3].Close()
		h.watched.close()
		return err
	}
	h.ports.Open = func(context.Context) (io.ReadWriteCloser, error) { return h.connect() }
	if m, ok := h.machine.(Networked); ok {
		h.ports.Near = m.DialGuest
	}
	h.relay = newRelay(sockets[0], h.connect, h.log)
	h.secret = newChannelRelay(sockets[3], h.connect, h.log)
	h.ctl = newControl(context.WithoutCancel(ctx), h, sockets[1])
	return nil
}

// persist makes the state of a claimed sandbox durable, after its answer.
func (h *holder) persist() {
	if h.adopter == nil {
		return
	}
	dir := h.dir
	go func() { // if it fails, a power loss leaves a damaged state.json of a sandbox that is dead
		if err := errors.Join(filestamp.Sync(filepath.Join(dir, stateFile)),
			filestamp.SyncDir(h.store.dir)); err != nil && exists(dir) {
			h.log.Warn("the sandbox's state is not durable", "err", err)
		}
	}()
}

// listen creates the sandbox's sockets, unless they exist. Nobody is served yet.
func (h *holder) listen() error {
	for _, name := range []string{socketFile, controlFile, watchFile, channelFile}[len(h.sockets):] {
		l, err := ownsocket.Listen(h.dir, name)
		if err != nil {
			for _, l := range h.sockets {
				_ = l.Close()
			}
			return createError(err)
		}
		h.sockets = append(h.sockets, l)
	}
	return nil
}

// keep waits for the sandbox's end and records it.
func (h *holder) keep(ctx context.Context) {
	_ = os.Chdir("/") // so that the process does not keep a file system busy
	defer h.due.Stop()
	event, reason := h.await(ctx)
	h.measure()
	reason += h.settle(event)
	// Recorded first, so that a client whose connection ends can read the reason.
	if err := h.apply(event, reason); err != nil {
		h.log.Error("the sandbox's end could not be recorded", "err", err)
	}
	_ = h.machine.Close() // before its connections, which a guest that does not read could block
	h.ctl.close()
	h.forwarding.Wait()
	h.ports.Close()
	h.relay.close()
	h.secret.close()
	h.watched.close()
	h.recorder.Close()
	for _, name := range []string{socketFile, controlFile, watchFile, channelFile} {
		_ = os.Remove(filepath.Join(h.dir, name))
	}
	h.lock.Release()
}

// measureEvery is the time between two looks at what a machine uses: what it uses after the last one
// is lost if its holder is killed.
const measureEvery = time.Minute

// measure notes what the machine has used. The next write of the state stores it.
func (h *holder) measure() {
	m, ok := h.machine.(interface{ Used() turnstone.Used })
	if !ok {
		return
	}
	used := m.Used()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.info.Used = h.info.Used.Max(used)
}

// keepMeasuring measures until done is closed.
func (h *holder) keepMeasuring(done <-chan struct{}) {
	t := time.NewTicker(measureEvery)
	defer t.Stop()
	for {
		select {
		case <-done:
			return
		case <-t.C:
		}
		h.measure()
		h.mu.Lock()
		if err := writeInfo(h.store.path(h.id), h.info); err != nil {
			h.log.Warn("what the sandbox used is not stored", "err", err)
		}
		h.mu.Unlock()
		h.watched.tell()
	}
}

// await returns the event that ends the sandbox.
func (h *holder) await(ctx context.Context) (event, string) {
	var measuring sync.WaitGroup
	done := make(chan struct{})
	defer func() { close(done); measuring.Wait() }()
	measuring.Go(func() { h.keepMeasuring(done) })
	select {
	case <-ctx.Done():
		return eventStopRequested, "on request"
	case <-h.stop:
		return eventStopRequested, "on request"
	case <-h.due.C:
		h.mu.Lock()
		defer h.mu.Unlock()
		return eventTimeUp, fmt.Sprintf("its time was up (%s)", h.ttl)
	case <-h.machine.Done():
		if err := h.machine.Err(); err != nil {
			return eventMachineDied, err.Error()
		}
		return eventMachineDied, "its machine ended"
	}
}
