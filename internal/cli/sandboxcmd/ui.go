package sandboxcmd

import "turnstone.dev/turnstone/internal/cli/uicmd"

// UICmd is turn ui.
type UICmd = uicmd.Cmd
