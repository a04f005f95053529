package envd

import (
	"context"
	"strconv"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone/internal/e2b/envdapi/process"
	"turnstone.dev/turnstone/wire"
)

// with calls f with the connection to a sandbox and the process that a selector names.
func with(ctx context.Context, s *process.ProcessSelector,
	f func(c *wire.Conn, i *wire.ProcessProcessInfo) error) error {
	c, _, err := open(ctx, wire.Options{})
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	i, err := find(ctx, c, s)
	if err != nil {
		return err
	}
	return f(c, i)
}

// Update changes the size of a terminal.
func (p processes) Update(ctx context.Context, r *connect.Request[process.UpdateRequest]) (
	*connect.Response[process.UpdateResponse], error) {
	err := with(ctx, r.Msg.Process, func(c *wire.Conn, i *wire.ProcessProcessInfo) error {
		if r.Msg.Pty == nil {
			return nil
		}
		size, err := terminal(r.Msg.Pty)
		if err != nil {
			return err
		}
		if !i.Terminal {
			return fail(connect.CodeFailedPrecondition, "the process has no terminal")
		}
		return c.ProcessResize(ctx, &wire.ProcessResizeParams{ProcessID: i.ProcessID,
			Columns: size.Columns, Rows: size.Rows})
	})
	return connect.NewResponse(&process.UpdateResponse{}), err
}

// SendInput writes to a process. It waits until the process's pipe has taken all.
func (p processes) SendInput(ctx context.Context, r *connect.Request[process.SendInputRequest]) (
	*connect.Response[process.SendInputResponse], error) {
	err := with(ctx, r.Msg.Process, func(c *wire.Conn, i *wire.ProcessProcessInfo) error {
		return write(ctx, c, i.ProcessID, r.Msg.Input)
	})
	return connect.NewResponse(&process.SendInputResponse{}), err
}

func write(ctx context.Context, c *wire.Conn, id string, in *process.ProcessInput) error {
	b := in.GetStdin()
	if pty, ok := in.GetInput().(*process.ProcessInput_Pty); ok {
		b = pty.Pty
	}
	return c.ProcessWrite(ctx, &wire.ProcessWriteParams{ProcessID: id, Data: b})
}

// StreamInput writes all that its caller sends.
func (p processes) StreamInput(ctx context.Context,
	s *connect.ClientStream[process.StreamInputRequest]) (
	*connect.Response[process.StreamInputResponse], error) {
	if !s.Receive() {
		if err := s.Err(); err != nil {
			return nil, err
		}
		return nil, fail(connect.CodeInvalidArgument, "the stream is empty")
	}
	start := s.Msg().GetStart()
	if start == nil {
		return nil, fail(connect.CodeInvalidArgument, "the stream does not begin with its process")
	}
	err := with(ctx, start.Process, func(c *wire.Conn, i *wire.ProcessProcessInfo) error {
		for s.Receive() {
			if d := s.Msg().GetData(); d != nil {
				if err := write(ctx, c, i.ProcessID, d.Input); err != nil {
					return err
				}
			}
		}
		return s.Err()
	})
	return connect.NewResponse(&process.StreamInputResponse{}), err
}

// maxSignal is the last of the standard signals.
const maxSignal = 31

// SendSignal sends a signal to a process and its descendants.
func (p processes) SendSignal(ctx context.Context, r *connect.Request[process.SendSignalRequest]) (
	*connect.Response[process.SendSignalResponse], error) {
	if r.Msg.Signal <= 0 || r.Msg.Signal > maxSignal {
		return nil, fail(connect.CodeUnimplemented, "there is no such signal")
	}
	err := with(ctx, r.Msg.Process, func(c *wire.Conn, i *wire.ProcessProcessInfo) error {
		return c.ProcessSignal(ctx, &wire.ProcessSignalParams{ProcessID: i.ProcessID,
			Signal: strconv.Itoa(int(r.Msg.Signal))})
	})
	return connect.NewResponse(&process.SendSignalResponse{}), err
}

// CloseStdin closes the standard input of a process.
func (p processes) CloseStdin(ctx context.Context, r *connect.Request[process.CloseStdinRequest]) (
	*connect.Response[process.CloseStdinResponse], error) {
	err := with(ctx, r.Msg.Process, func(c *wire.Conn, i *wire.ProcessProcessInfo) error {
		if i.Terminal {
			return fail(connect.CodeFailedPrecondition, "a terminal has no standard input to close: send 0x04")
		}
		return c.ProcessCloseStdin(ctx, &wire.ProcessCloseStdinParams{ProcessID: i.ProcessID})
	})
	return connect.NewResponse(&process.CloseStdinResponse{}), err
}
