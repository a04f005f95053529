//go:build !turnstone_client

package servecmd

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/cli"
)

// program is the file beside turn.
const program = "turn-server"

// Run replaces this process by turn-server, so that a service manager sees one process.
func (c *Cmd) Run(a *cli.App) error {
	path, err := find()
	if err != nil {
		return cli.Exit(cli.ExitAborted, turnstone.NewError("serve", turnstone.KindUnavailable,
			program, err).WithHint("install "+program+" beside turn: make build makes both"))
	}
	keepSockets()
	args := append([]string{"turn"}, c.args()...)
	if a.Verbose > 0 {
		args = append(args, "-"+strings.Repeat("v", a.Verbose))
	}
	err = syscall.Exec(path, args, os.Environ())
	return cli.Exit(cli.ExitAborted,
		turnstone.NewError("serve", turnstone.KindUnavailable, path, err))
}

// find returns the path of the server beside this program, or in PATH.
func find() (string, error) {
	if self, err := os.Executable(); err == nil {
		beside, err := exec.LookPath(filepath.Join(filepath.Dir(self), program))
		if err == nil {
			return beside, nil
		}
	}
	return exec.LookPath(program)
}

// keepSockets passes the sockets of a service manager on (sd_listen_fds(3)). cli.Main has marked
// them as all others.
func keepSockets() {
	const first = 3
	n, err := strconv.Atoi(os.Getenv("LISTEN_FDS"))
	if err != nil || os.Getenv("LISTEN_PID") != strconv.Itoa(os.Getpid()) {
		return
	}
	for fd := first; fd < first+min(n, 1000); fd++ {
		_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0) // one that is closed stays closed
	}
}
