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

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/network"
	"turnstone.dev/turnstone/substrate"
)

// The control socket of a sandbox carries lines of JSON: a request, its answer, and
// so on. With the answers to disk and dial a descriptor comes (unix(7), SCM_RIGHTS).

// A controlRequest is one line to a holder.
type controlRequest struct {
	Op      string `json:"op"`                // one of the ops
	Dir     string `json:"dir,omitempty"`     // of snapshot and keep
	Secrets bool   `json:"secrets,omitempty"` // of snapshot and keep: also of a sandbox that holds some
	Port    uint16 `json:"port,omitempty"`    // of dial
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
)

// A controlAnswer is the holder's line back.
type controlAnswer struct {
	Fault *fault            `json:"fault,omitempty"`
	Kept  *substrate.Packed `json:"kept,omitempty"` // of keep

	Network *network.Facts `json:"network,omitempty"` // of network
	Status
}

// A Status is how a sandbox's machine is at the moment.
type Status struct {
	Paused bool `json:"paused"`
	// Upper is the folder of the scratch disk that has the sandbox's changes, as the
	// guest said when it was paused.
	Upper string `json:"upper,omitempty"`
}

// maxControl bounds one line of the control socket, in bytes.
const maxControl = 64 << 10

// A Control works on a sandbox's machine as a whole, through its holder. Its
// methods are safe for concurrent use; the holder carries out one at a time. When
// the ctx of one ends, the others fail too.
type Control struct {
	id turnstone.SandboxID

	mu   sync.Mutex
	conn *net.UnixConn
}

// Control connects to the control of a sandbox that lives. The caller closes it.
func (s *Store) Control(ctx context.Context, id turnstone.SandboxID) (*Control, error) {
	conn, err := s.dial(ctx, id, controlFile)
	if err != nil {
		return nil, err
	}
	return &Control{id: id, conn: conn}, nil
}

// Close ends the connection to the holder; the sandbox stays as it is.
func (c *Control) Close() error { return c.conn.Close() }

// Status asks how the machine is.
func (c *Control) Status(ctx context.Context) (Status, error) {
	a, _, err := c.do(ctx, controlRequest{Op: opStatus})
	return a.Status, err
}

// Pause makes the machine stand still, with its processes and its memory; its disk
// is complete then. The connections to the sandbox end, and no new one is taken
// until Resume. One that is paused stays so.
func (c *Control) Pause(ctx context.Context) (Status, error) {
	a, _, err := c.do(ctx, controlRequest{Op: opPause})
	return a.Status, err
}

// Resume lets a paused machine go on, with fresh entropy and the host's clock. One
// that is not paused is left alone.
func (c *Control) Resume(ctx context.Context) error {
	_, _, err := c.do(ctx, controlRequest{Op: opResume})
	return err
}

// SnapshotOptions say what Snapshot may do beside the usual.
type SnapshotOptions struct {
	Secrets bool // also of a sandbox that holds secrets: their values are in its memory
}

// Snapshot writes the machine into the folder dir, which it makes, as
// substrate.Snapshotter says; dir is absolute. A machine that runs goes on, and its
// connections end; one that is paused stays so.
func (c *Control) Snapshot(ctx context.Context, dir string, opt SnapshotOptions) error {
	_, _, err := c.do(ctx, controlRequest{Op: opSnapshot, Dir: dir, Secrets: opt.Secrets})
	return err
}

// Keep is Snapshot in a form to keep for long: as what differs from the template's
// snapshot. It returns the names of the files in dir, and of the images that the
// machine has as layers.
func (c *Control) Keep(ctx context.Context, dir string, opt SnapshotOptions) (substrate.Packed, error) {
	a, _, err := c.do(ctx, controlRequest{Op: opKeep, Dir: dir, Secrets: opt.Secrets})
	if err == nil && a.Kept == nil {
		err = c.broken(errors.New("it does not say what was kept"))
	}
	if err != nil {
		return substrate.Packed{}, err
	}
	return *a.Kept, nil
}

// Disk returns the machine's scratch disk, to be read only; the caller closes it. It
// is still only while the machine is, and its content is the guest's word.
func (c *Control) Disk(ctx context.Context) (*os.File, error) {
	_, disk, err := c.do(ctx, controlRequest{Op: opDisk})
	if err == nil && disk == nil {
		err = c.broken(errors.New("no descriptor came"))
	}
	return disk, err
}

// do sends one request and waits for its answer.
func (c *Control) do(ctx context.Context, q controlRequest) (controlAnswer, *os.File, error) {
	var a controlAnswer
	line, err := json.Marshal(q)
	if err != nil {
		return a, nil, c.broken(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	// There is no taking back a request but to hang up.
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
		"its holder hung up: %w", err).WithHint("turn sandbox ls says what became of it")
}

func (c *Control) broken(err error) error {
	return turnstone.Errorf("sandbox.control", turnstone.KindInternal, "sandbox "+string(c.id),
		"its holder answers nonsense: %w", err)
}

// readAnswer reads one line, and the descriptor that may come with its first byte.
func readAnswer(conn *net.UnixConn) (line []byte, file *os.File, err error) {
	buf, rights := make([]byte, 4096), make([]byte, unix.CmsgSpace(4))
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
					_ = unix.Close(fd)
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
		case len(line) > maxControl:
			return nil, file, fmt.Errorf("a line is longer than %d bytes", maxControl)
		}
	}
}

// descriptors returns what a control message brought. Nothing that runs later may
// inherit them.
func descriptors(rights []byte) []int {
	msgs, err := unix.ParseSocketControlMessage(rights)
	if err != nil {
		return nil
	}
	var all []int
	for _, m := range msgs {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			continue
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			all = append(all, fd)
		}
	}
	return all
}

// Controlled is what a Machine may be able to do beside the usual; see
// executor.Sandbox.
type Controlled interface {
	// Pause makes the machine stand still and ends all its connections. It returns
	// the folder of the disk that has its changes.
	Pause(ctx context.Context) (upper string, err error)
	// Resume undoes Pause.
	Resume(ctx context.Context) error
	// Snapshot writes the machine into a new folder. All connections of one that is
	// not paused end.
	Snapshot(ctx context.Context, dir string) error
	// Keep is Snapshot as what differs from the template's.
	Keep(ctx context.Context, dir string) (substrate.Packed, error)
	// Disk returns a descriptor of its own of the disk that takes the writes.
	Disk() (*os.File, error)
}

// maxControls bounds the connections to a control socket at one time.
const maxControls = 16

// control serves the control socket of h's sandbox until close.
type control struct {
	h        *holder
	listener *net.UnixListener
	slots    chan struct{}
	turn     chan struct{} // holds one token: requests are carried out one at a time
	ctx      context.Context
	cancel   context.CancelFunc
	wg       sync.WaitGroup
}

func newControl(ctx context.Context, h *holder, l *net.UnixListener) *control {
	c := &control{h: h, listener: l, slots: make(chan struct{}, maxControls), turn: make(chan struct{}, 1)}
	c.ctx, c.cancel = context.WithCancel(ctx)
	c.wg.Go(c.accept)
	return c
}

// close ends what is under way and waits for it.
func (c *control) close() {
	if c == nil {
		return
	}
	c.cancel()
	_ = c.listener.Close()
	c.wg.Wait()
}

func (c *control) accept() {
	for {
		conn, err := c.listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors, most likely: some will be given back
			c.h.log.Warn("a connection to the control could not be accepted", "err", err)
			time.Sleep(100 * time.Millisecond)
			continue
		}
		if err := checkPeer(conn); err != nil {
			c.h.log.Warn("a connection to the control was refused", "err", err)
			_ = conn.Close()
			continue
		}
		select {
		case c.slots <- struct{}{}:
		default:
			_ = conn.Close()
			continue
		}
		c.wg.Go(func() {
			defer func() { <-c.slots }()
			c.serve(conn)
		})
	}
}

// serve carries out the requests of one connection. When it ends, what it has asked
// for is given up, as far as that can be.
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
				c.h.log.Warn("the control was asked nonsense", "err", err)
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
		rights = unix.UnixRights(int(disk.Fd()))
	}
	_, _, err = conn.WriteMsgUnix(append(b, '\n'), rights, nil)
	return err
}
