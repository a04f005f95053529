package sessions

import (
	"context"
	"encoding/json"
	"io"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/server/node/owners"
	"turnstone.dev/turnstone/internal/turnlog"
	"turnstone.dev/turnstone/wire"
)

// Export sends a session as one file.
func (v *served) Export(ctx context.Context, c *wire.Conn, p *wire.SessionExportParams) (
	*wire.SessionExportResult, error) {
	r := new(wire.SessionExportResult)
	return r, v.do(ctx, owners.Read, heavy, func(ctx context.Context) error {
		var rep *turnstone.ExportReport
		err := send(c, p.Data, func(w io.Writer) (err error) {
			rep, err = v.x.Export(ctx, executor.ExportRequest{Session: p.Session, Full: p.Full}, w)
			return err
		})
		if err == nil {
			r.Result, err = json.Marshal(rep)
		}
		return err
	})
}

// Import reads a session, which becomes the client's. The specs of templates in the file are as
// untrusted as the file, so only the operator registers them.
func (v *served) Import(ctx context.Context, c *wire.Conn, p *wire.SessionImportParams) error {
	req := executor.ImportRequest{As: p.As, Build: turnstone.ImportBuild(p.Build),
		AcceptHistory: p.AcceptHistory}
	switch req.Build {
	case "", turnstone.BuildNone, turnstone.BuildKnown:
	case turnstone.BuildAll:
		if !v.caller.Operator {
			return forbidden("building templates whose specs only the file has")
		}
	default:
		return invalid("the templates to build", "are not none, known or all")
	}
	in, err := c.Receiver(p.Data)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	return run(ctx, v, job{c, p.Journal, p.Hold, owners.Write},
		func(ctx context.Context, w *turnlog.JobWriter) (*turnstone.ImportReport, error) {
			req.Progress = w.Preparing
			return v.x.Import(ctx, req, in)
		})
}
