package sandboxcmd

import "turnstone.dev/turnstone/internal/cli/mcpcmd"

// MCPCmd is turn mcp.
type MCPCmd = mcpcmd.Cmd
