package agent

import (
	"context"

	"turnstone.dev/turnstone/internal/guest/process"
	"turnstone.dev/turnstone/internal/guest/record"
	"turnstone.dev/turnstone/wire"
)

// Record implements Sandbox.record.
func (s *sandbox) Record(_ context.Context, c *wire.Conn) error {
	s.a.records.Record(c)
	return nil
}

// attachRecorder attaches a connection that records to p, which has written nothing yet.
func (a *Agent) attachRecorder(to *wire.Conn, rec *record.Command, p *process.Process) {
	at, err := a.client(to).attach(p, nil, process.Recorder, [2]wanted{})
	if err != nil {
		return // the connection has ended
	}
	at.recorded = rec
	at.begin()
}
