package firecracker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"slices"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/console"
	"turnstone.dev/turnstone/internal/subprocess"
)

// socketWait is how long a Firecracker may take to listen on its API's socket.
const socketWait = 10 * time.Second

// launch starts a Firecracker that finds files in its folder, and waits until it answers.
func (s *Substrate) launch(ctx context.Context, shape turnstone.Shape,
	files []placed) (vm *machine, err error) {
	id := turnstone.NewSandboxID()
	c, err := newCell(ctx, s.home, id)
	if err != nil {
		return nil, err
	}
	m := newMachine(id, c)
	m.Advice = s.guest.Advice()
	// only a boot has a kernel
	if !slices.ContainsFunc(files, func(f placed) bool { return f.name == kernelName }) {
		m.Console = console.Running()
	}
	m.rooted = s.release.standstill()
	if m.scratch, err = c.copies(ctx, files); err != nil {
		c.remove()
		return nil, err
	}
	switch m.wall = s.wall.Wall; m.wall {
	case byJailer:
		err = s.startJailed(ctx, m, shape.CPUs, files)
	case jailed:
		err = s.startInJail(ctx, m, shape, files, m.withID())
	default:
		err = s.startPlain(m, files)
	}
	if err != nil {
		_ = m.scratch.Close()
		c.remove()
		return nil, err
	}
	if err := m.answers(ctx); err != nil {
		return nil, s.failed(ctx, m, err)
	}
	return m, nil
}

// arguments returns Firecracker's arguments. Its log goes to its console. The jailer adds the ID.
func arguments() []string {
	return []string{"--api-sock", apiSocket, "--level", "Warning", "--show-level"}
}

// withID returns the arguments of a Firecracker that no jailer starts.
func (m *machine) withID() []string {
	return append([]string{"--id", instanceID(m.ID())}, arguments()...)
}

// environment returns Firecracker's environment.
func environment() []string { return []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"} }

// instanceID returns the sandbox's ID in characters that Firecracker accepts.
func instanceID(id turnstone.SandboxID) string { return strings.ReplaceAll(string(id), "_", "-") }

// startPlain runs Firecracker as this user, in the cell's folder.
func (s *Substrate) startPlain(m *machine, files []placed) error {
	extra, err := m.cell.links(files)
	defer func() {
		for _, f := range extra {
			_ = f.Close()
		}
	}()
	if err != nil {
		return err
	}
	cmd := exec.Command(s.binary, m.withID()...)
	cmd.Dir, cmd.ExtraFiles = m.cell.dir, extra
	return m.spawn(cmd, nil)
}

// spawn starts cmd; the machine ends with cmd. before is subprocess.Options.Before.
func (m *machine) spawn(cmd *exec.Cmd, before func() error) error {
	cmd.Stdout, cmd.Stderr = m.Console, &m.stderr
	cmd.Env = environment() // a jail sets its program's environment
	cmd.WaitDelay = time.Second
	return m.Start(cmd, subprocess.Options{Before: before, Ended: m.ended})
}

// answers waits for the API, and checks that a newly started Firecracker answers.
func (m *machine) answers(ctx context.Context) error {
	given := ctx
	ctx, cancel := context.WithTimeout(ctx, socketWait)
	defer cancel()
	for delay := time.Millisecond; ; delay = min(2*delay, 20*time.Millisecond) {
		var info instanceInfo
		err := m.api.do(ctx, "GET", "/", nil, &info)
		switch {
		case err == nil && info.State == stateNotStarted:
			return nil
		case err == nil:
			return fmt.Errorf("the API is not that of a newly started Firecracker: its state is %q",
				console.Clip(info.State, 40))
		}
		var op *net.OpError
		if !errors.As(err, &op) || op.Op != "dial" {
			return err
		}
		select {
		case <-m.Done():
			return errors.New("firecracker ended")
		case <-ctx.Done():
			if given.Err() == nil {
				return fmt.Errorf("firecracker does not listen on its socket after %s", socketWait)
			}
			return given.Err()
		case <-time.After(delay):
		}
	}
}
