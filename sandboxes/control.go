package sandboxes

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/ownsocket"
	"turnstone.dev/turnstone/substrate"
)

// The control socket of a sandbox carries lines of JSON: requests and answers alternate. The
// answers to disk and dial carry a descriptor (unix(7), SCM_RIGHTS).

// A controlRequest is a line to a holder.
type controlRequest struct {
	Op  string `json:"op"`            // an op constant
	Dir string `json:"dir,omitempty"` // for snapshot and keep
	// for snapshot and keep: allow a sandbox that holds secrets
	Secrets bool   `json:"secrets,omitempty"`
	Port    uint16 `json:"port,omitempty"` // for dial
	// for ttl: from now; 0: never
	TTL time.Duration `json:"ttl,omitempty"`
}

const (
	opStatus   = "status"
	opPause    = "pause"
	opResume   = "resume"
	opSnapshot = "snapshot"
	opKeep     = "keep"
	opDisk     = "disk"
	opNetwork  = "network"
	opDial     = "dial"
	opCommit   = "commit"
	opClose    = "close"   // commit and end
	opDiscard  = "discard" // do not commit at the end
	opTTL      = "ttl"
)

// A controlAnswer is the holder's answer line.
type controlAnswer struct {
	Fault *fault            `json:"fault,omitempty"`
	Kept  *substrate.Packed `json:"kept,omitempty"` // for keep

	Network *turnstone.NetworkFacts `json:"network,omitempty"` // for network
	Turn    *turnstone.TurnReport   `json:"turn,omitempty"`    // for commit
	Status
}

// Status is the current state of a sandbox's machine.
type Status struct {
	Paused bool `json:"paused"`
	// Upper is the folder of the scratch disk that contains the sandbox's changes, as reported by
	// the guest when it was paused.
	Upper string         `json:"upper,omitempty"`
	Used  turnstone.Used `json:"used,omitzero"` // as it was measured last; at the pause
}

// maxControl bounds a request in bytes, and maxAnswer an answer, which may have a turn's report
// without its receipt.
const (
	maxControl = 64 << 10
	maxAnswer  = 64 << 20
)

// A Control operates on a sandbox's whole machine through its holder. Its methods are safe for
// concurrent use; the holder executes requests one after another. When a call's ctx ends, the other
// calls fail too.
type Control struct {
	id turnstone.SandboxID

	mu   sync.Mutex
	conn *net.UnixConn
}

// Control connects to the control socket of a running sandbox. The caller closes the Control.
func (s *Store) Control(ctx context.Context, id turnstone.SandboxID) (*Control, error) {
	conn, err := s.dial(ctx, id, controlFile)
	if err != nil {
		return nil, err
	}
	return &Control{id: id, conn: conn}, nil
}

// Close closes the connection to the holder; the sandbox is unchanged.
func (c *Control) Close() error { return c.conn.Close() }

// Status returns the machine's current state.
func (c *Control) Status(ctx context.Context) (Status, error) {
	a, _, err := c.do(ctx, controlRequest{Op: opStatus})
	return a.Status, err
}

// Pause pauses the machine with its processes and memory; its disk is complete then. The
// connections to the sandbox end, and new connections wait until Resume. A paused machine stays
// paused.
func (c *Control) Pause(ctx context.Context) (Status, error) {
	a, _, err := c.do(ctx, controlRequest{Op: opPause})
	return a.Status, err
}

// Resume resumes a paused machine with fresh entropy and the host's clock. It does not affect a
// running machine.
func (c *Control) Resume(ctx context.Context) error {
	_, _, err := c.do(ctx, controlRequest{Op: opResume})
	return err
}

// SetTTL sets the time from now to the sandbox's stop; 0: it is not stopped.
func (c *Control) SetTTL(ctx context.Context, ttl time.Duration) error {
	_, _, err := c.do(ctx, controlRequest{Op: opTTL, TTL: ttl})
	return err
}

// SnapshotOptions are options of Snapshot.
type SnapshotOptions struct {
	Secrets bool // allow a sandbox that holds secrets: their values are in its memory
}

// Snapshot writes the machine into the new folder dir (substrate.Snapshotter); dir is absolute. A
// running machine continues without its connections; a paused machine stays paused.
func (c *Control) Snapshot(ctx context.Context, dir string, opt SnapshotOptions) error {
	_, _, err := c.do(ctx, controlRequest{Op: opSnapshot, Dir: dir, Secrets: opt.Secrets})
	return err
}

// Keep is Snapshot in a form for long-term storage: the differences from the template's snapshot.
// It returns the names of the files in dir and of the images that the machine has as layers.
func (c *Control) Keep(ctx context.Context, dir string,
	opt SnapshotOptions) (substrate.Packed, error) {
	a, _, err := c.do(ctx, controlRequest{Op: opKeep, Dir: dir, Secrets: opt.Secrets})
	if err == nil && a.Kept == nil {
		err = c.broken(errors.New("it does not report what was kept"))
	}
	if err != nil {
		return substrate.Packed{}, err
	}
	return *a.Kept, nil
}

// Disk returns the machine's scratch disk, for reading only; the caller closes it. The disk is
// stable only while the machine is paused, and its content is untrusted.
func (c *Control) Disk(ctx context.Context) (*os.File, error) {
	_, disk, err := c.do(ctx, controlRequest{Op: opDisk})
	if err == nil && disk == nil {
		err = c.broken(errors.New("no descriptor was received"))
	}
	return disk, err
}

// do sends a request and waits for its answer.
func (c *Control) do(ctx context.Context, q controlRequest) (controlAnswer, *os.File, error) {
	var a controlAnswer
	line, err := json.Marshal(q)
	if err != nil {
		return a, nil, c.broken(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	// Only closing the connection cancels a request.
	defer context.AfterFunc(ctx, func() { _ = c.conn.Close() })()
	if _, err := c.conn.Write(append(line, '\n')); err != nil {
		return a, nil, c.gone(ctx, err)
	}
	b, disk, err := readAnswer(c.conn)
	if err != nil {
		return a, nil, c.gone(ctx, err)
	}
	if err := json.Unmarshal(b, &a); err != nil {
		closeFile(disk)
		return a, nil, c.broken(err)
	}
	if a.Fault != nil {
		closeFile(disk)
		return a, nil, a.Fault.err()
	}
	return a, disk, nil
}

func closeFile(f *os.File) {
	if f != nil {
		_ = f.Close()
	}
}

func (c *Control) gone(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return canceled(ctx, "sandbox.control")
	}
	return turnstone.Errorf("sandbox.control", turnstone.KindDead, "sandbox "+string(c.id),
		"its holder closed the connection: %w", err).WithHint("see its state with turn sandbox ls")
}

func (c *Control) broken(err error) error {
	return turnstone.Errorf("sandbox.control", turnstone.KindInternal, "sandbox "+string(c.id),
		"its holder sent a malformed answer: %w", err)
}

// readAnswer reads a line and the descriptor that may arrive with its first byte.
func readAnswer(conn *net.UnixConn) (line []byte, file *os.File, err error) {
	buf, rights := make([]byte, 4096), make([]byte, rightsSpace)
	defer func() {
		if err != nil {
			closeFile(file)
			file = nil
		}
	}()
	for {
		n, oobn, _, _, err := conn.ReadMsgUnix(buf, rights)
		if oobn > 0 {
			fds := descriptors(rights[:oobn])
			for _, fd := range fds {
				if file == nil {
					file = os.NewFile(uintptr(fd), "disk")
				} else {
					_ = os.NewFile(uintptr(fd), "").Close()
				}
			}
		}
		line = append(line, buf[:max(0, n)]...) // -1 with an error
		if at := bytes.IndexByte(line, '\n'); at >= 0 {
			return line[:at], file, nil
		}
		switch {
		case err != nil:
			return nil, file, err
		case n == 0:
			return nil, file, io.ErrUnexpectedEOF
		case len(line) > maxAnswer:
			return nil, file, fmt.Errorf("a line is longer than %d bytes", maxAnswer)
		}
	}
}

// Controlled holds the optional abilities of a Machine: pausing, snapshots and its disk.
type Controlled interface {
	// Pause pauses the machine and ends all its connections. It returns the folder of the disk that
	// contains its changes.
	Pause(ctx context.Context) (upper string, err error)
	// Resume undoes Pause.
	Resume(ctx context.Context) error
	// Snapshot writes the machine into a new folder. If the machine is not paused, its connections
	// end.
	Snapshot(ctx context.Context, dir string) error
	// Keep is Snapshot as the differences from the template's snapshot.
	Keep(ctx context.Context, dir string) (substrate.Packed, error)
	// Disk returns a new descriptor of the disk that stores the writes.
	Disk() (*os.File, error)
}

// maxControls bounds the concurrent connections to a control socket.
const maxControls = 16

// control serves the control socket of h's sandbox until close.
type control struct {
	h        *holder
	listener *net.UnixListener
	slots    chan struct{}
	turn     chan struct{} // holds a single token: requests run one after another
	ctx      context.Context
	cancel   context.CancelFunc
	wg       sync.WaitGroup
}

func newControl(ctx context.Context, h *holder, l *net.UnixListener) *control {
	c := &control{h: h, listener: l, slots: make(chan struct{}, maxControls),
		turn: make(chan struct{}, 1)}
	c.ctx, c.cancel = context.WithCancel(ctx)
	c.wg.Go(c.accept)
	return c
}

// close cancels pending requests and waits for their end.
func (c *control) close() {
	if c == nil {
		return
	}
	c.cancel()
	_ = c.listener.Close()
	c.wg.Wait()
}

func (c *control) accept() {
	ownsocket.Accept(c.listener, c.h.log, "a connection to the control", func(conn *net.UnixConn) {
		select {
		case c.slots <- struct{}{}:
		default:
			_ = conn.Close()
			return
		}
		c.wg.Go(func() {
			defer func() { <-c.slots }()
			c.serve(conn)
		})
	})
}

// serve executes the requests of a connection. When the connection ends, its pending request is
// canceled as far as possible.
func (c *control) serve(conn *net.UnixConn) {
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	requests := make(chan controlRequest)
	go func() {
		defer cancel()
		in := bufio.NewScanner(conn)
		in.Buffer(nil, maxControl)
		for in.Scan() {
			q, err := parseRequest(in.Bytes())
			if err != nil {
				c.h.log.Warn("a malformed request to the control", "err", err)
				return
			}
			select {
			case requests <- q:
			case <-ctx.Done():
				return
			}
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case q := <-requests:
			if err := c.answer(ctx, conn, q); err != nil {
				return
			}
		}
	}
}

func parseRequest(line []byte) (q controlRequest, err error) {
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&q); err != nil {
		return q, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return q, errors.New("more than one value in a line")
	}
	return q, nil
}

func (c *control) answer(ctx context.Context, conn *net.UnixConn, q controlRequest) error {
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	var a controlAnswer
	disk, err := c.h.control(ctx, q, &a)
	defer closeFile(disk)
	if err != nil {
		a.Fault = toFault(err)
	}
	a.Status = c.h.status()
	b, err := json.Marshal(a)
	if err != nil {
		return err
	}
	var rights []byte
	if disk != nil {
		rights = rightsOf(disk)
	}
	_, _, err = conn.WriteMsgUnix(append(b, '\n'), rights, nil)
	return err
}
