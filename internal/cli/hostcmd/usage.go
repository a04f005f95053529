package hostcmd

import (
	"context"
	"fmt"
	"io"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
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

// A UsageReport is the output of turn usage.
type UsageReport struct {
	Session   string         `json:"session,omitempty"`
	Since     time.Time      `json:"since"`
	Until     time.Time      `json:"until"`
	Turns     uint64         `json:"turns"`     // that were started
	Sandboxes uint64         `json:"sandboxes"` // that were created
	Used      turnstone.Used `json:"used"`      // as the nodes measured it
	// The time that machines existed, that times their CPUs, and that times their memory in MiB.
	SandboxSeconds int64  `json:"sandbox_seconds"`
	TurnSeconds    int64  `json:"turn_seconds"`
	CPUSeconds     int64  `json:"cpu_seconds"`
	MemorySeconds  uint64 `json:"memory_mib_seconds"`
	// Now, of the whole tenant.
	ActiveSandboxes uint32          `json:"active_sandboxes"`
	ActiveTurns     uint32          `json:"active_turns"`
	Stored          turnstone.Bytes `json:"stored"`
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
		ask := &v1.GetUsageRequest{Session: c.Session}
		if c.Since != nil {
			ask.Since = timestamppb.New(c.Since.Time)
		}
		answer, err := s.Turns.GetUsage(ctx, connect.NewRequest(ask))
		if err != nil {
			return err
		}
		r := usageReport(answer.Msg)
		r.Session = c.Session
		return a.Result(r, nil, r.print)
	})
}

func usageReport(m *v1.GetUsageResponse) UsageReport {
	return UsageReport{Since: m.GetSince().AsTime(), Until: m.GetUntil().AsTime(),
		Turns: m.GetTurns(), Sandboxes: m.GetSandboxes(),
		Used: turnstone.Used{CPU: turnstone.Millis(m.GetUsed().GetCpu().AsDuration()),
			Sent:     turnstone.Bytes(m.GetUsed().GetBytesOut()),
			Received: turnstone.Bytes(m.GetUsed().GetBytesIn())},
		SandboxSeconds: m.GetSandboxTime().GetSeconds(), TurnSeconds: m.GetTurnTime().GetSeconds(),
		CPUSeconds: m.GetCpuTime().GetSeconds(), MemorySeconds: m.GetMemoryMibSeconds(),
		ActiveSandboxes: m.GetActiveSandboxes(), ActiveTurns: m.GetActiveTurns(),
		Stored: turnstone.Bytes(m.GetStoredBytes())}
}

func (r UsageReport) print(w io.Writer) {
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
