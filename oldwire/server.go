package oldwire

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"

	"turnstone.dev/turnstone"
)

// A Call is one request as the agent's side sees it. Its reader yields the raw
// bytes that follow the request, until the caller closes its half; its writer
// sends raw bytes back. A Call belongs to one goroutine, but reading and writing
// may be two.
type Call struct {
	Method string
	params json.RawMessage
	r      *bufio.Reader
	s      stream
}

// Decode reads the call's parameters into v. The error is of kind Invalid.
func (c *Call) Decode(v any) error {
	if len(c.params) == 0 {
		return nil
	}
	if err := json.Unmarshal(c.params, v); err != nil {
		return &turnstone.Error{Op: c.Method, Kind: turnstone.Invalid, Subject: "parameters", Err: err}
	}
	return nil
}

// Reply sends the call's result; nil stands for an empty one.
func (c *Call) Reply(result any) error {
	if result == nil {
		result = struct{}{}
	}
	b, err := json.Marshal(result)
	if err != nil {
		return err
	}
	return writeLine(c.s, response{Result: b})
}

// Fail answers the call with an error.
func (c *Call) Fail(err error) error { return writeLine(c.s, response{Error: encodeError(err)}) }

func (c *Call) Read(p []byte) (int, error)  { return c.r.Read(p) }
func (c *Call) Write(p []byte) (int, error) { return c.s.Write(p) }

// CloseWrite ends what the call sends, before its Handler returns.
func (c *Call) CloseWrite() error { return c.s.CloseWrite() }

// A Handler answers calls. It is called in a goroutine of its own for each call;
// ctx ends with the connection. When it returns, the call's stream is closed. An
// error that it returns is sent to the caller, so it must not have replied.
type Handler func(ctx context.Context, c *Call) error

// maxCalls bounds the calls that are served at one time; more wait.
const maxCalls = 1024

// Serve answers the calls that come over conn until the connection ends, then
// closes it and waits for the handlers. The error says why it ended; it is nil
// when the other side closed the connection.
func Serve(ctx context.Context, conn io.ReadWriteCloser, h Handler) error {
	t, err := newTransport(conn, false)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(ctx, func() { _ = t.Close() })
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	defer cancel()
	defer func() { _ = t.Close() }()

	slots := make(chan struct{}, maxCalls)
	for {
		s, err := t.Accept()
		if err != nil {
			if hungUp(err) {
				return nil
			}
			return err
		}
		slots <- struct{}{}
		wg.Go(func() {
			serveCall(ctx, s, h)
			<-slots
		})
	}
}

// hungUp says that the other side closed the connection: how that shows depends
// on the kind of connection, and on whether something was being written.
func hungUp(err error) bool {
	for _, end := range []error{io.EOF, io.ErrClosedPipe, os.ErrClosed, net.ErrClosed, syscall.EPIPE, syscall.ECONNRESET} {
		if errors.Is(err, end) {
			return true
		}
	}
	return false
}

// serveCall reads one request and hands it to h.
func serveCall(ctx context.Context, s stream, h Handler) {
	defer func() { _ = s.CloseWrite() }()
	c := &Call{r: bufio.NewReader(s), s: s}
	req, err := decodeRequest(c.r)
	if err != nil {
		if !errors.Is(err, io.EOF) {
			_ = c.Fail(&turnstone.Error{Op: "wire.read", Kind: turnstone.Invalid, Subject: "request", Err: err})
		}
		return
	}
	c.Method, c.params = req.Method, req.Params
	if err := h(ctx, c); err != nil {
		_ = c.Fail(err)
	}
}
