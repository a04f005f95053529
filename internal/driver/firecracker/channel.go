package firecracker

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"turnstone.dev/turnstone/internal/driver/console"
)

// channel is the byte stream to the agent. The connection below it is replaced after a snapshot has
// reset it; the stream is empty then (wire.Port). Its deadlines are those of a net.Conn, and apply
// to the current connection.
type channel struct {
	mu     sync.Mutex
	conn   net.Conn
	closed bool
}

func (c *channel) current() (net.Conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.conn == nil {
		return nil, net.ErrClosed
	}
	return c.conn, nil
}

// swap replaces the connection by conn.
func (c *channel) swap(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != nil {
		_ = c.conn.Close()
	}
	if c.conn = conn; c.closed && conn != nil {
		_ = conn.Close()
	}
}

func (c *channel) Read(b []byte) (int, error) {
	conn, err := c.current()
	if err != nil {
		return 0, err
	}
	return conn.Read(b)
}

func (c *channel) Write(b []byte) (int, error) {
	conn, err := c.current()
	if err != nil {
		return 0, err
	}
	return conn.Write(b)
}

// Close may be called more than once.
func (c *channel) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.conn == nil {
		return nil
	}
	err := c.conn.Close()
	c.conn = nil
	return err
}

func (c *channel) SetDeadline(t time.Time) error {
	return c.deadline(func(conn net.Conn) error { return conn.SetDeadline(t) })
}

func (c *channel) SetReadDeadline(t time.Time) error {
	return c.deadline(func(conn net.Conn) error { return conn.SetReadDeadline(t) })
}

func (c *channel) SetWriteDeadline(t time.Time) error {
	return c.deadline(func(conn net.Conn) error { return conn.SetWriteDeadline(t) })
}

func (c *channel) deadline(set func(net.Conn) error) error {
	conn, err := c.current()
	if err != nil {
		return err
	}
	return set(conn)
}

// connectLimit bounds the time to reach the agent, and attemptLimit the time of a single attempt.
const (
	connectLimit = 30 * time.Second
	attemptLimit = 3 * time.Second
)

// errMute means that the agent was ready, but does not answer.
var errMute = fmt.Errorf("the agent does not answer within %s", connectLimit)

// connect gives the machine's channel a connection to its agent. The agent serves a single
// connection, so connect closes the previous connection first. While a restored guest wakes up,
// connections may be refused, or accepted and then reset.
func (m *machine) connect(ctx context.Context) error {
	m.agent.swap(nil)
	ctx, cancel := context.WithTimeoutCause(ctx, connectLimit, errMute)
	defer cancel()
	for delay := time.Millisecond; ; delay = min(2*delay, 50*time.Millisecond) {
		conn, err := m.attempt(ctx)
		if err == nil {
			m.agent.swap(conn)
			return nil
		}
		select {
		case <-m.Done():
			if own := m.Err(); own != nil {
				return own
			}
			return err
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-time.After(delay):
		}
	}
}

// attempt tries once to connect.
func (m *machine) attempt(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptLimit)
	defer cancel()
	conn, err := m.cell.dial(ctx, vsockSocket)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	err = greet(conn, agentPort)
	if !stop() && err == nil {
		err = os.ErrDeadlineExceeded
	}
	if err == nil {
		return conn, nil
	}
	_ = conn.Close()
	return nil, err
}

// The host's first message on a connection to the agent, and the number of random bytes that the
// host then expects back (package agent, Hello).
const (
	hello     = "turnstone "
	HelloSize = 16
)

// greet asks Firecracker for a connection to a port of the guest's vsock, with a line of text
// (docs/vsock.md in its repository), and asks the agent to confirm the connection.
func greet(conn net.Conn, port uint32) error {
	if _, err := fmt.Fprintf(conn, "CONNECT %d\n", port); err != nil {
		return err
	}
	line, err := readLine(conn)
	if err != nil {
		return fmt.Errorf("vsock: no connection to port %d: %w", port, err)
	}
	if err := checkOK(line); err != nil {
		return err
	}
	var nonce, back [HelloSize]byte
	_, _ = rand.Read(nonce[:]) // never fails
	if _, err := conn.Write(append([]byte(hello), nonce[:]...)); err != nil {
		return err
	}
	if _, err := io.ReadFull(conn, back[:]); err != nil {
		return fmt.Errorf("vsock: the agent does not answer: %w", err)
	}
	if !bytes.Equal(nonce[:], back[:]) {
		return errors.New("vsock: the answer is not the agent's")
	}
	return nil
}

// maxLine bounds Firecracker's answer to CONNECT, in bytes.
const maxLine = 32

// readLine reads up to a line feed, and no byte after it.
func readLine(r io.Reader) (string, error) {
	var line []byte
	for b := make([]byte, 1); len(line) < maxLine; {
		if _, err := io.ReadFull(r, b); err != nil {
			return "", err
		}
		if b[0] == '\n' {
			return string(line), nil
		}
		line = append(line, b[0])
	}
	return "", fmt.Errorf("an answer of more than %d bytes", maxLine)
}

// checkOK checks Firecracker's answer to CONNECT: OK and the port on the host's side.
func checkOK(line string) error {
	port, ok := strings.CutPrefix(line, "OK ")
	if ok {
		_, err := strconv.ParseUint(port, 10, 32)
		ok = err == nil
	}
	if !ok {
		return fmt.Errorf("vsock: invalid answer to CONNECT: %q", console.Printable(line))
	}
	return nil
}
