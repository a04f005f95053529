package oldwire

import (
	"bufio"
	"context"
	"errors"
	"io"
	"sync"

	"turnstone.dev/turnstone"
)

// A Client is the host's end of a connection to an agent. Its methods are safe
// for concurrent use. A method whose connection ends returns an error of kind
// Dead; errors that the agent answers with come as the *turnstone.Error it sent.
type Client struct {
	t transport
}

// NewClient starts the protocol over conn, which then belongs to the client.
func NewClient(conn io.ReadWriteCloser) (*Client, error) {
	t, err := newTransport(conn, true)
	if err != nil {
		return nil, &turnstone.Error{Op: "wire.connect", Kind: turnstone.Internal, Err: err}
	}
	c := &Client{t: t}
	go c.refuse()
	return c, nil
}

// refuse ends a connection whose agent opens a stream: in this protocol only the
// caller does.
func (c *Client) refuse() {
	if _, err := c.t.Accept(); err == nil {
		_ = c.t.Close()
	}
}

// Close ends the connection. Calls that are under way return.
func (c *Client) Close() error { return c.t.Close() }

// Done is closed when the connection has ended.
func (c *Client) Done() <-chan struct{} { return c.t.Done() }

// Configure makes a restored clone a sandbox of its own. The caller must not use
// one whose result does not say that it was reseeded.
func (c *Client) Configure(ctx context.Context, p ConfigureParams) (ConfigureResult, error) {
	var res ConfigureResult
	err := c.call(ctx, MethodConfigure, p, &res)
	return res, err
}

// Stats tells what the guest uses.
func (c *Client) Stats(ctx context.Context) (StatsResult, error) {
	var res StatsResult
	err := c.call(ctx, MethodStats, struct{}{}, &res)
	return res, err
}

// Kill sends SIGKILL to the whole tree of the process with this ID.
func (c *Client) Kill(ctx context.Context, id string) error {
	return c.call(ctx, MethodKill, KillParams{ID: id}, nil)
}

// Execute runs one step in the shell session and copies its output while it
// runs; nil writers discard. When ctx ends, the step's process tree is killed,
// and Execute still waits for the result, so that the output until then is
// whole; the caller bounds this by closing the client. The error is then ctx's
// cause, with the result. A writer that fails also ends the step.
func (c *Client) Execute(ctx context.Context, p ExecuteParams, stdout, stderr io.Writer) (ExitResult, error) {
	return c.run(ctx, MethodExecute, p.ID, p, nil, stdout, stderr)
}

// Start runs one process and copies its output while it runs, as Execute does.
// Standard input is read when p.Stdin is set; a nil stdin is then empty. Reading
// stdin may outlive Start by one Read.
func (c *Client) Start(ctx context.Context, p StartParams, stdin io.Reader, stdout, stderr io.Writer) (ExitResult, error) {
	if !p.Stdin {
		stdin = nil
	} else if stdin == nil {
		stdin = eofReader{}
	}
	return c.run(ctx, MethodStart, p.ID, p, stdin, stdout, stderr)
}

type eofReader struct{}

func (eofReader) Read([]byte) (int, error) { return 0, io.EOF }

// Put unpacks the tar stream r in the sandbox, as archive.Unpack has it: below
// dest when that is a directory or ends in "/", else renamed to dest. It may
// return, with an error, before r was read to its end, and reading r may outlive
// it by one Read: close what feeds r.
func (c *Client) Put(ctx context.Context, dest string, r io.Reader) error {
	s, err := c.open(ctx, MethodPut, PutParams{Dest: dest})
	if err != nil {
		return err
	}
	defer s.release()
	stop := context.AfterFunc(ctx, s.Abort)
	defer stop()
	sent := make(chan error, 1)
	go func() {
		_, err := copyBuffer(s.stream, r)
		sent <- err
		s.release() // the end of the tar stream, or the agent would wait for the rest
	}()
	// The answer comes after the last byte, or before it when something failed.
	err = decodeResponse(s.r, nil)
	if err == nil {
		return nil
	}
	select {
	case sendErr := <-sent:
		if sendErr != nil && isAgentError(err) && !isStreamEnd(sendErr) {
			return sendErr // r failed, and the agent saw only its consequence
		}
	default:
	}
	return c.explain(ctx, MethodPut, err)
}

// Get writes path of the sandbox to w as a tar stream whose entries are relative
// to path's parent. What comes is hostile: unpack it with archive.Unpack.
func (c *Client) Get(ctx context.Context, path string, w io.Writer) error {
	s, err := c.open(ctx, MethodGet, GetParams{Path: path})
	if err != nil {
		return err
	}
	defer s.release()
	stop := context.AfterFunc(ctx, s.Abort)
	defer stop()
	if err := decodeResponse(s.r, nil); err != nil {
		return c.explain(ctx, MethodGet, err)
	}
	tail := &tailWriter{w: w}
	if _, err := copyBuffer(tail, s.r); err != nil {
		if tail.err != nil {
			s.Abort()
			return tail.err
		}
		return c.explain(ctx, MethodGet, err)
	}
	if tail.complete() {
		return nil
	}
	if c.closed() {
		return c.explain(ctx, MethodGet, io.ErrUnexpectedEOF)
	}
	return &turnstone.Error{Op: MethodGet, Kind: turnstone.Internal, Subject: path,
		Hint: "a file may have changed while it was read; try again",
		Err:  errors.New("the archive is cut off")}
}

// run is Execute and Start: the call and its streams are opened without waiting
// for each other, because a round trip into a sandbox is expensive.
func (c *Client) run(ctx context.Context, method, id string, params any, stdin io.Reader, stdout, stderr io.Writer) (ExitResult, error) {
	var res ExitResult
	main, err := c.open(context.WithoutCancel(ctx), method, params)
	if err != nil {
		return res, c.explain(ctx, method, err)
	}
	defer main.release()

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var outs sync.WaitGroup
	var opened []*clientStream
	for fd, w := range map[int]io.Writer{1: stdout, 2: stderr} {
		s, err := c.open(context.WithoutCancel(ctx), MethodOutput, StreamParams{ID: id, FD: fd})
		if err != nil {
			cancel(err)
			break
		}
		opened = append(opened, s)
		outs.Go(func() {
			defer s.release()
			drainTo(w, s.r, cancel)
		})
	}
	if stdin != nil {
		if s, err := c.open(context.WithoutCancel(ctx), MethodStdin, StreamParams{ID: id}); err == nil {
			defer s.Abort()
			go func() { // ends with stdin, or when the process has ended
				_, _ = copyBuffer(s.stream, stdin)
				s.release()
			}()
		}
	}

	stopKill := context.AfterFunc(ctx, func() { _ = c.Kill(context.WithoutCancel(ctx), id) })
	err = decodeResponse(main.r, &res)
	if err != nil {
		// Nothing was started, or nobody is there: no end of the outputs will come.
		for _, s := range opened {
			s.Abort()
		}
	}
	outs.Wait()
	if ended := !stopKill(); err == nil && ended {
		err = context.Cause(ctx)
		return res, err
	}
	return res, c.explain(ctx, method, err)
}

// call makes one plain call. When ctx ends, it returns at once; the agent may
// still carry the call out.
func (c *Client) call(ctx context.Context, method string, params, result any) error {
	s, err := c.open(ctx, method, params)
	if err != nil {
		return err
	}
	defer s.release()
	stop := context.AfterFunc(ctx, s.Abort)
	defer stop()
	return c.explain(ctx, method, decodeResponse(s.r, result))
}

// clientStream is one call's stream with its reader.
type clientStream struct {
	stream
	r    *bufio.Reader
	once sync.Once
}

func (s *clientStream) release() { s.once.Do(func() { _ = s.stream.CloseWrite() }) }

func (c *Client) open(ctx context.Context, method string, params any) (*clientStream, error) {
	if err := ctx.Err(); err != nil {
		return nil, c.explain(ctx, method, err)
	}
	s, err := c.t.Open()
	if err != nil {
		return nil, c.explain(ctx, method, err)
	}
	if err := writeLine(s, struct {
		Method string `json:"method"`
		Params any    `json:"params,omitempty"`
	}{method, params}); err != nil {
		_ = s.CloseWrite()
		return nil, c.explain(ctx, method, err)
	}
	return &clientStream{stream: s, r: bufio.NewReader(s)}, nil
}

func (c *Client) closed() bool {
	select {
	case <-c.t.Done():
		return true
	default:
		return false
	}
}

// explain turns what ended a call into the error that its caller sees.
func (c *Client) explain(ctx context.Context, method string, err error) error {
	var malformed *malformedError
	switch {
	case err == nil:
		return nil
	case isAgentError(err):
		return err
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return &turnstone.Error{Op: method, Kind: turnstone.Timeout, Err: context.Cause(ctx)}
	case ctx.Err() != nil:
		return &turnstone.Error{Op: method, Kind: turnstone.Canceled, Err: context.Cause(ctx)}
	case errors.As(err, &malformed), errors.Is(err, errLineTooLong):
		return &turnstone.Error{Op: method, Kind: turnstone.Internal, Subject: "agent", Err: err,
			Hint: "something in the sandbox speaks for its agent; do not trust this sandbox"}
	default:
		return &turnstone.Error{Op: method, Kind: turnstone.Dead, Subject: "connection to the sandbox", Err: err,
			Hint: "the sandbox has ended; run the turn again"}
	}
}

func isAgentError(err error) bool {
	var te *turnstone.Error
	return errors.As(err, &te)
}
