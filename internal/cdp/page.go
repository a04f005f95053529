package cdp

import (
	"errors"
	"net/http"
	"os"
	"sync"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/sandboxes"
	"turnstone.dev/turnstone/wire"
)

// servePage gives a client its own connection to a sandbox's agent. Messages pass unchanged.
func (s *Server) servePage(w http.ResponseWriter, r *http.Request, id turnstone.SandboxID) {
	conn, err := s.opt.Backend.Dial(r.Context(), id)
	if err != nil {
		http.Error(w, err.Error(), statusOf(err))
		return
	}
	defer conn.Close()
	s.upgrade(w, r, func(c *socket) {
		if !s.attach(id) {
			_ = conn.Close()
			c.leave(tryAgainLater,
				"this server has reached its limit of connections to the sandbox")
			return
		}
		defer s.detach(id)
		agent := wire.NewFrames(newPatient(conn, nil, s.writeTime), false)
		var sending sync.WaitGroup
		sending.Go(func() {
			defer conn.Close()
			readErr, writeErr := pass(agent, c.Frames)
			if readErr != nil {
				s.quit(c, readErr)
			}
			if errors.Is(writeErr, os.ErrDeadlineExceeded) {
				s.opt.Log.Info("a sandbox accepted no data and was disconnected",
					"sandbox", id, "limit", s.writeTime)
				c.leave(goingAway, "the sandbox accepted no data for "+s.writeTime.String())
			} // otherwise the agent's own closing frame arrives in the other direction
		})
		readErr, writeErr := pass(c.Frames, agent)
		if writeErr != nil {
			s.quit(c, writeErr)
		} else {
			code, reason := s.ended(id, readErr)
			c.leave(code, reason)
		}
		_ = conn.Close()
		sending.Wait()
	})
}

// pass copies messages until reading or writing fails.
func pass(to, from *wire.Frames) (readErr, writeErr error) {
	var buf []byte
	for {
		text, p, err := from.Next(buf)
		if err != nil {
			return err, nil
		}
		if text {
			err = to.WriteText(p)
		} else {
			err = to.WriteBinary(p)
		}
		if err != nil {
			return nil, err
		}
		if buf = p; cap(buf) > 4*wire.MaxChunk {
			buf = nil // do not keep the buffer of a rare large message
		}
	}
}

// ended returns why a sandbox ended a connection, for a closing frame.
func (s *Server) ended(id turnstone.SandboxID, err error) (code int, reason string) {
	var closed *wire.ClosedError
	if errors.As(err, &closed) && closed.Reason != "" {
		return closed.Code, closed.Reason
	}
	i, getErr := s.opt.Backend.Get(id)
	switch {
	case turnstone.KindOf(getErr) == turnstone.KindNotFound:
		return goingAway, "the sandbox was removed"
	case getErr == nil && i.State.Final():
		return goingAway, endText(i)
	}
	return goingAway, "the sandbox ended the connection"
}

func endText(i sandboxes.Info) string {
	text := "the sandbox is " + string(i.State)
	if i.Reason != "" {
		text += ": " + i.Reason
	}
	return text
}
