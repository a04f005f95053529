package agent

import (
	"context"

	"turnstone.dev/turnstone/internal/guest/process"
	"turnstone.dev/turnstone/internal/guest/record"
	"turnstone.dev/turnstone/wire"
)

// Record implements Sandbox.record.
func (s *sandbox) Record(ctx context.Context, c *wire.Conn) error {
	return s.a.secrets.Record(ctx, s.a.records, c)
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
