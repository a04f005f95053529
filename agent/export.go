package agent

import (
	"context"
	"errors"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/wire"
)

// Export is State.export.
func (s *shell) Export(_ context.Context, _ *wire.Conn, _ *wire.StateExportParams) (*wire.StateExportResult, error) {
	return nil, &turnstone.Error{Op: wire.MethodStateExport, Kind: turnstone.Invalid, Subject: "sandbox", Err: errors.New("its disk is the host's to read")}
}
