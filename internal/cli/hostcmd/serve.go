package hostcmd

import "turnstone.dev/turnstone/internal/cli/servecmd"

// ServeCmd starts a server.
type ServeCmd = servecmd.Cmd
