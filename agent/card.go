package agent

import (
	"context"
	"errors"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/wire"
)

// Network is Sandbox.network.
func (s *sandbox) Network(_ context.Context, _ *wire.Conn, _ *wire.SandboxNetworkParams) (*wire.SandboxNetworkResult, error) {
	return nil, &turnstone.Error{Op: wire.MethodSandboxNetwork, Kind: turnstone.Invalid, Subject: "sandbox", Err: errors.New("it is not a machine of its own")}
}
