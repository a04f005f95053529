package sandboxcmd

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/terminal"
	"turnstone.dev/turnstone/wire"
)

type sandboxPsCmd struct {
	Sandbox string `arg:"" help:"ID, ID prefix or name."`
	JSON    bool   `name:"json" help:"Print JSON."`
}

// Run lists the processes that were started in the sandbox.
func (c *sandboxPsCmd) Run(a *cli.App) error {
	return a.WithSandboxes(func(ctx context.Context, s cli.Sandboxes) error {
		id, err := s.Resolve(ctx, c.Sandbox)
		if err != nil {
			return err
		}
		all, err := s.Processes(ctx, id)
		return a.Result(newProcessesReport(all), err, func(w io.Writer) {
			// All of this data comes from the sandbox.
			head := "PROCESS\tPID\tSTATE\tAGE\tOUTPUT\tCOMMAND"
			terminal.Table(w, head, all, func(p wire.ProcessProcessInfo) []any {
				output := turnstone.Bytes(max(0, p.StdoutEnd) + max(0, p.StderrEnd)).Human()
				command := terminal.Shorten(terminal.Printable(strings.Join(p.Argv, " ")), 60)
				return []any{p.ProcessID, p.PID, processState(p), processAge(p), output, command}
			})
		})
	})
}

func processState(p wire.ProcessProcessInfo) string {
	if p.Exit == nil {
		return "running"
	}
	return fmt.Sprintf("exit %d", p.Exit.ExitCode)
}

func processAge(p wire.ProcessProcessInfo) string {
	t, err := time.Parse(time.RFC3339Nano, p.Started)
	if err != nil {
		return "-"
	}
	return terminal.Rough(time.Since(t))
}

// A ProcessesReport is the output of turn sandbox ps.
type ProcessesReport struct {
	Processes []processReport `json:"processes"`
}

// A processReport is one process, as the sandbox reports it.
type processReport struct {
	Process     string      `json:"process"` // its name
	Argv        []string    `json:"argv"`
	Cwd         string      `json:"cwd"`
	PID         int64       `json:"pid"` // in the sandbox
	Started     time.Time   `json:"started"`
	Terminal    bool        `json:"terminal"`
	Attached    int64       `json:"attached"`     // connections
	StdoutFirst int64       `json:"stdout_first"` // offset of the oldest byte that is kept
	StdoutEnd   int64       `json:"stdout_end"`   // bytes so far
	StderrFirst int64       `json:"stderr_first"`
	StderrEnd   int64       `json:"stderr_end"`
	Exit        *exitReport `json:"exit"` // null while it runs
}

// An exitReport describes the end of a process.
type exitReport struct {
	// 128 plus the signal's number if a signal ended it
	Code      int64            `json:"exit_code"`
	Signal    string           `json:"signal,omitempty"`
	OOMKilled bool             `json:"oom_killed"`
	DiskFull  bool             `json:"disk_full"`
	Killed    bool             `json:"killed"` // on request, or because its connection ended
	Duration  turnstone.Millis `json:"duration_ms"`
}

func newProcessesReport(all []wire.ProcessProcessInfo) ProcessesReport {
	r := ProcessesReport{Processes: []processReport{}}
	for _, p := range all {
		// from the sandbox: zero if it is not a time
		started, _ := time.Parse(time.RFC3339Nano, p.Started)
		out := processReport{Process: p.ProcessID, Argv: slices.Concat([]string{}, p.Argv),
			Cwd: p.Cwd, PID: p.PID, Started: started, Terminal: p.Terminal, Attached: p.Attached,
			StdoutFirst: p.StdoutFirst, StdoutEnd: p.StdoutEnd,
			StderrFirst: p.StderrFirst, StderrEnd: p.StderrEnd}
		if e := p.Exit; e != nil {
			out.Exit = &exitReport{Code: e.ExitCode, Signal: e.Signal, OOMKilled: e.OOMKilled,
				DiskFull: e.DiskFull, Killed: e.Killed, Duration: turnstone.Millis(e.Duration)}
		}
		r.Processes = append(r.Processes, out)
	}
	return r
}
