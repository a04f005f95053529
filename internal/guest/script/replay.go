package script

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"sync"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/wire"
)

// paramsOf returns the parameters of a command of a script.
func paramsOf(c *substrate.Call) (params any, err error) {
	switch c.Method {
	case wire.MethodSandboxConfigure:
		params = new(wire.SandboxConfigureParams)
	case wire.MethodStateSetSession:
		params = new(wire.StateSetSessionParams)
	case wire.MethodFileSystemUnpack:
		params = new(wire.FileSystemUnpackParams)
	case wire.MethodShellExecute:
		params = new(wire.ShellExecuteParams)
	case wire.MethodStateFreeze:
		return nil, nil
	default:
		return nil, turnstone.Errorf(turnstone.Op(c.Method), turnstone.KindInvalid, c.Method,
			"is no command of a script")
	}
	if err := json.Unmarshal(c.Params, params); err != nil {
		return nil, turnstone.NewError(turnstone.Op(c.Method), turnstone.KindInvalid, "parameters",
			err)
	}
	data := c.Method == wire.MethodFileSystemUnpack || c.Method == wire.MethodShellExecute
	if data != (c.Data != nil) {
		return nil, turnstone.Errorf(turnstone.Op(c.Method), turnstone.KindInvalid, "data",
			"is missing, or has no meaning")
	}
	return params, nil
}

// same returns an error if the host's command is not call. It reads the command's stream.
func same(c *wire.Conn, call *substrate.Call, params any) error {
	want, err := paramsOf(call)
	if err != nil {
		return err
	}
	var data io.Reader
	switch p := params.(type) {
	case *wire.FileSystemUnpackParams:
		r, err := c.Receiver(p.Stream)
		if err != nil {
			return err
		}
		defer r.Close()
		data = r
	case *wire.ShellExecuteParams:
		data = bytes.NewReader([]byte(p.Script))
		if p.ScriptStream != 0 {
			r, err := c.Receiver(p.ScriptStream)
			if err != nil {
				return err
			}
			defer r.Close()
			data = r
		}
	}
	if want == nil {
		return nil
	}
	a, err := comparable(want)
	if err != nil {
		return err
	}
	b, err := comparable(params)
	if err != nil {
		return err
	}
	if !bytes.Equal(a, b) {
		return errors.New("its parameters are others")
	}
	if data == nil {
		return nil
	}
	return sameData(data, io.NewSectionReader(call.Data, 0, call.Size))
}

// comparable returns what two equal commands have in common.
func comparable(params any) ([]byte, error) {
	switch p := params.(type) {
	case *wire.FileSystemUnpackParams:
		return json.Marshal(wire.FileSystemUnpackParams{Dest: p.Dest})
	case *wire.ShellExecuteParams:
		own := *p
		own.ProcessID, own.Script = "", ""
		own.ScriptStream, own.StdoutStream, own.StderrStream = 0, 0, 0
		return json.Marshal(own)
	}
	return json.Marshal(params)
}

// sameData returns an error if a and b differ. It reads a to its end if they are equal.
func sameData(a, b io.Reader) error {
	const part = 64 << 10
	x, y := make([]byte, part), make([]byte, part)
	for {
		n, errA := io.ReadFull(a, x)
		m, errB := io.ReadFull(b, y)
		if !bytes.Equal(x[:n], y[:m]) {
			return errors.New("its data is other")
		}
		over := func(err error) bool {
			return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		}
		switch {
		case errA != nil && !over(errA):
			return errA
		case errB != nil && !over(errB):
			return errB
		case over(errA) || over(errB):
			return nil // both, because n == m
		}
	}
}

// maxBatch bounds the records of one event, as the agent's own.
const maxBatch = 256

// replay sends what a step printed and did, as if it ran now.
func replay(ctx context.Context, c *wire.Conn, step *ended, p *wire.ShellExecuteParams) (any,
	error) {
	var to [2]*wire.Sender
	for i, id := range []wire.StreamID{p.StdoutStream, p.StderrStream} {
		if id == 0 {
			continue
		}
		s, err := c.Sender(id)
		if err != nil {
			return nil, err
		}
		to[i] = s
	}
	wire.AfterReply(ctx, func() {
		c.Go(func() { step.send(c, p.ProcessID, to) })
	})
	return &wire.ShellExecuteResult{ProcessID: p.ProcessID, Path: step.end.Path}, nil
}

// send sends the step's output, then its records and its end. It ends with the connection.
func (e *ended) send(c *wire.Conn, id string, to [2]*wire.Sender) {
	var outs sync.WaitGroup
	for i, s := range to {
		if s != nil {
			outs.Go(func() { copyOut(s, e.out[i]) })
		}
	}
	outs.Wait()
	for rest := e.records; len(rest) > 0; {
		n := min(len(rest), maxBatch)
		if c.EmitShellCommands(c.Context(), &wire.ShellCommandsEvent{ProcessID: id,
			Records: rest[:n]}) != nil {
			return
		}
		rest = rest[n:]
	}
	finished := e.end.ShellFinishedEvent
	finished.ProcessID = id
	_ = c.EmitShellFinished(c.Context(), &finished)
}

// copyOut sends the output in f.
func copyOut(s *wire.Sender, f *os.File) {
	st, err := f.Stat()
	if err == nil {
		_, err = io.CopyBuffer(struct{ io.Writer }{s},
			struct{ io.Reader }{io.NewSectionReader(f, 0, st.Size())}, make([]byte, 256<<10))
	}
	if err != nil {
		s.Abort(err)
		return
	}
	_ = s.Close()
}
