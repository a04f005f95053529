package hostcmd

import (
	"context"
	"fmt"
	"io"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/cli/opscmd"
	"turnstone.dev/turnstone/internal/remote"
	"turnstone.dev/turnstone/internal/terminal"
)

// UsageCmd prints what the caller's tenant used on a server.
type UsageCmd struct {
	Session string         `help:"Only in this session: its name or ID." placeholder:"SESSION"`
	Since   *opscmd.Moment `help:"From this time on, such as 24h (default: this month)." placeholder:"TIME"`
	JSON    bool           `name:"json" help:"Print JSON."`
}

// Help is shown below the flags' summary.
func (c *UsageCmd) Help() string {
	return `The numbers are those of your token's tenant on the server in use. "processor time",
"sent" and "received" are what nodes measured; "reserved" is the time that machines
existed, times their CPUs and their memory. A machine that ended before its node
measured it a last time, such as in a crash, lacks at most its last minute.`
}

// Examples returns command lines for the help.
func (c *UsageCmd) Examples() []string {
	return []string{"turn usage --since 24h", "turn usage --session research --json"}
}

// Run prints the usage.
func (c *UsageCmd) Run(a *cli.App) error {
	return withServer(a, func(ctx context.Context, s *remote.Server) error {
		var since time.Time
		if c.Since != nil {
			since = c.Since.Time
		}
		r, err := s.Usage(ctx, c.Session, since)
		if err != nil {
			return err
		}
		return a.Result(r, nil, func(w io.Writer) { printUsage(w, r) })
	})
}

func printUsage(w io.Writer, r *turnstone.UsageReport) {
	now := fmt.Sprintf("%d sandboxes, %d turns, %s stored", r.ActiveSandboxes, r.ActiveTurns,
		r.Stored.Human())
	if r.Session != "" {
		now += " (of the whole tenant)"
	}
	for _, row := range [][2]string{
		{"since", r.Since.Format(time.RFC3339)},
		{"turns", fmt.Sprintf("%d (%d s)", r.Turns, r.TurnSeconds)},
		{"sandboxes", fmt.Sprintf("%d (%d s)", r.Sandboxes, r.SandboxSeconds)},
		{"processor time", time.Duration(r.Used.CPU).Round(10 * time.Millisecond).String()},
		{"sent", r.Used.Sent.Human()},
		{"received", r.Used.Received.Human()},
		{"reserved", fmt.Sprintf("%d CPU s, %d MiB s", r.CPUSeconds, r.MemorySeconds)},
		{"now", now},
	} {
		terminal.Println(w, fmt.Sprintf("%-15s %s", row[0], row[1]))
	}
}
