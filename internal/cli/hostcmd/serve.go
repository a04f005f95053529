package hostcmd

import (
	"turnstone.dev/turnstone/internal/cli/mcpcmd"
	"turnstone.dev/turnstone/internal/cli/servecmd"
)

// ServeCmd starts a server.
type ServeCmd = servecmd.Cmd

// MCPCmd serves a client of the Model Context Protocol.
type MCPCmd = mcpcmd.Cmd
