// Command podinit runs in a pod's sandbox. It makes a container's root file system, starts its
// processes in it, and sends them signals: a small OCI runtime, whose only client is the shim. It
// protects nothing from the guest: the machine does.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"syscall"

	"turnstone.dev/turnstone/shim/guest"
)

func main() {
	code, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "podinit:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// With these arguments the helper starts itself in a container's namespaces.
const (
	setup = "setup"
	join  = "join"
)

func run(args []string) (int, error) {
	if len(args) < 2 {
		return 1, errors.New("a command and its arguments are missing")
	}
	cmd, id, rest := args[0], args[1], args[2:]
	if cmd == guest.CmdUnpack || cmd == guest.CmdUpdate {
		return 0, unpack(os.Stdin, id, cmd == guest.CmdUpdate)
	}
	if err := guest.CheckID(id); err != nil {
		return 1, err
	}
	switch {
	case cmd == guest.CmdRun:
		return runContainer(id)
	case cmd == setup:
		return 1, setUp(id)
	case cmd == join:
		return 1, joined()
	case cmd == guest.CmdExec && len(rest) == 1:
		return execIn(id, rest[0])
	case cmd == guest.CmdKill && len(rest) == 2:
		return 0, kill(id, rest[0], rest[1])
	case cmd == guest.CmdStats:
		return 0, printStats(id)
	case cmd == guest.CmdLimit:
		return 0, relimit(id)
	case cmd == guest.CmdRemove:
		return 0, errors.Join(os.RemoveAll(guest.ContainerDir(id)), os.RemoveAll(guest.WritesDir(id)))
	}
	return 1, errors.New("there is no such command")
}

func read(id, exec, name string, v any) error {
	b, err := os.ReadFile(guest.File(id, exec, name))
	if err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}

// report tells the shim that a process runs, or why it does not.
func report(id, exec string, err error) {
	text := guest.Started
	if err != nil {
		text = err.Error()
		text = text[:min(len(text), guest.MaxStatus)]
	}
	file := guest.File(id, exec, guest.FileStatus)
	if os.WriteFile(file+".new", []byte(text), 0o600) == nil {
		_ = os.Rename(file+".new", file)
	}
}

// statusOf returns the exit code of a process as runtimes report it.
func statusOf(s syscall.WaitStatus) int {
	if s.Signaled() {
		return 128 + int(s.Signal())
	}
	return s.ExitStatus()
}
