package sandboxcmd

import "turnstone.dev/turnstone/internal/cli/topcmd"

// TopCmd is turn top.
type TopCmd = topcmd.Cmd
