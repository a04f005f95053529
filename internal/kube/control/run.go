package control

import (
	"context"
	"crypto/rand"
	"strconv"
	"strings"

	"turnstone.dev/turnstone/internal/kube/agents"
	"turnstone.dev/turnstone/wire"
)

// processPrefix begins the names of the processes of a sandbox that its object asks for: their number
// follows. A name is used once, so a process is never started twice.
const processPrefix = "main-"

// Run implements agents.Server.
func (c *Client) Run(ctx context.Context, namespace, id string, m agents.Main) (p agents.Process, err error) {
	err = c.Use(ctx, namespace, id, func(w *wire.Client) error {
		p, err = run(ctx, w, m)
		return err
	})
	return p, err
}

func run(ctx context.Context, w *wire.Client, m agents.Main) (agents.Process, error) {
	all, err := w.ProcessList(ctx)
	if err != nil {
		return agents.Process{}, err
	}
	number, last := lastOf(all.Processes)
	if last == nil {
		for _, dir := range m.Dirs {
			if err := directory(ctx, w, dir, m.User); err != nil {
				return agents.Process{}, err
			}
		}
	}
	if len(m.Argv) == 0 {
		return agents.Process{}, nil
	}
	if last != nil {
		if last.Exit == nil {
			return agents.Process{}, nil
		}
		failed := last.Exit.ExitCode != 0 || last.Exit.Signal != ""
		if m.Again == agents.Never || m.Again == agents.OnFailure && !failed {
			return agents.Process{Ended: true, Failed: failed}, nil
		}
	}
	_, err = w.ProcessStart(ctx, &wire.ProcessStartParams{ProcessID: processPrefix + strconv.Itoa(number+1),
		Argv: m.Argv, Env: m.Env, Cwd: m.Cwd, User: m.User, Detach: true})
	return agents.Process{}, err
}

// lastOf returns the last of the processes that an object asked for, and its number.
func lastOf(all []wire.ProcessProcessInfo) (number int, last *wire.ProcessProcessInfo) {
	for n := range all {
		text, ok := strings.CutPrefix(all[n].ProcessID, processPrefix)
		if i, err := strconv.Atoi(text); ok && err == nil && i > number {
			number, last = i, &all[n]
		}
	}
	return number, last
}

// directory makes a directory that stands for a volume. It belongs to the process's user.
func directory(ctx context.Context, w *wire.Client, dir, user string) error {
	if err := w.FileSystemMkdir(ctx, &wire.FileSystemMkdirParams{Path: dir, Parents: true}); err != nil {
		return err
	}
	if user == "" {
		return nil
	}
	_, err := w.Start(ctx, wire.ProcessStartParams{ProcessID: "own" + strings.ToLower(rand.Text()),
		Argv: []string{"chown", user, "--", dir}}, wire.Stdio{})
	return err
}
