package qemu

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
)

// monitor is a client of the QEMU Machine Protocol: JSON objects in both directions, answers in the
// order of the commands, with events in between (QEMU, docs/interop/qmp-spec.rst). It is safe for
// concurrent use.
type monitor struct {
	conn    net.Conn // a unix socket
	onEvent func(event)

	mu      sync.Mutex
	waiting []chan answer
	err     error
}

// An event is an unsolicited message of QEMU.
type event struct {
	Name string
	Data json.RawMessage
}

type answer struct {
	value json.RawMessage
	err   error
}

type command struct {
	Execute   string `json:"execute"`
	Arguments any    `json:"arguments,omitempty"`

	file *os.File // sent with the command, for getfd
}

// newMonitor starts reading. Commands may be sent at once: QEMU processes them in order, so that
// nothing must wait for its greeting.
func newMonitor(conn net.Conn, onEvent func(event)) *monitor {
	m := &monitor{conn: conn, onEvent: onEvent}
	go m.read()
	return m
}

func (m *monitor) read() {
	in := &bounded{r: m.conn}
	dec := json.NewDecoder(in)
	for {
		in.left = maxMessage
		var msg struct {
			QMP    json.RawMessage `json:"QMP"`
			Return json.RawMessage `json:"return"`
			Error  *struct {
				Class string `json:"class"`
				Desc  string `json:"desc"`
			} `json:"error"`
			Event string          `json:"event"`
			Data  json.RawMessage `json:"data"`
		}
		if err := dec.Decode(&msg); err != nil {
			m.fail(fmt.Errorf("QEMU's monitor is gone: %w", err))
			return
		}
		switch {
		case msg.Event != "":
			m.onEvent(event{msg.Event, msg.Data})
		case msg.Error != nil:
			m.answer(answer{err: fmt.Errorf("QEMU refuses: %s", msg.Error.Desc)})
		case msg.Return != nil:
			m.answer(answer{value: msg.Return})
		}
	}
}

// maxMessage bounds a message of QEMU, in bytes: an attacker who has broken out into QEMU may write
// an endless message. The longest requested message has some kilobytes.
const maxMessage = 4 << 20

// A bounded fails once it was read to its bound.
type bounded struct {
	r    io.Reader
	left int
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, fmt.Errorf("a message has more than %d bytes", maxMessage)
	}
	n, err := b.r.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}

func (m *monitor) answer(a answer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.waiting) == 0 {
		return
	}
	m.waiting[0] <- a
	m.waiting = m.waiting[1:]
}

func (m *monitor) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err = err
	for _, w := range m.waiting {
		w <- answer{err: err}
	}
	m.waiting = nil
}

// send writes cmds in one piece and returns the channel of their answers.
func (m *monitor) send(cmds ...command) ([]chan answer, error) {
	var buf, rights []byte
	waits := make([]chan answer, len(cmds))
	for i, c := range cmds {
		b, err := json.Marshal(c)
		if err != nil {
			return nil, err
		}
		buf = append(append(buf, b...), '\n')
		waits[i] = make(chan answer, 1)
		if c.file != nil {
			rights = syscall.UnixRights(int(c.file.Fd()))
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return nil, m.err
	}
	m.waiting = append(m.waiting, waits...)
	conn, ok := m.conn.(*net.UnixConn)
	if !ok {
		return nil, fmt.Errorf("the monitor's connection is a %T", m.conn)
	}
	_, _, err := conn.WriteMsgUnix(buf, rights, nil)
	return waits, err
}

// do sends cmds and waits for all answers; it returns the last answer's value.
func (m *monitor) do(ctx context.Context, cmds ...command) (json.RawMessage, error) {
	waits, err := m.send(cmds...)
	if err != nil {
		return nil, err
	}
	var last json.RawMessage
	for i, w := range waits {
		select {
		case a := <-w:
			if a.err != nil {
				return nil, fmt.Errorf("%s: %w", cmds[i].Execute, a.err)
			}
			last = a.value
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return last, nil
}

// ignoreShared enables the capability that keeps memory that is mapped from a file out of the state
// stream. The name is QEMU's own; the capability exists, marked experimental, since 4.0.
var ignoreShared = command{Execute: "migrate-set-capabilities", Arguments: map[string]any{
	"capabilities": []map[string]any{{"capability": "x-ignore-shared", "state": true}},
}}

// passState passes the pipe of the device state, under the name that stateURI uses.
func passState(f *os.File) command {
	return command{Execute: "getfd", Arguments: map[string]any{"fdname": "state"}, file: f}
}

var stateURI = map[string]any{"uri": "fd:state"}

var negotiate = command{Execute: "qmp_capabilities"}
