//go:build !turnstone_client

package syntax

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/subprocess"
)

const checkMemory = 2 << 30 // bytes of address space

// askBash returns bash's message about a script, or "" if bash accepts the script.
func askBash(ctx context.Context, bash, shell string, src []byte,
	options ...string) (string, error) {
	failed := func(err error) error {
		return turnstone.NewError("syntax.check", turnstone.KindUnavailable, bash, err).
			WithHint("put a working bash in PATH, or mark the step as unparsed to run it without " +
				"this check")
	}
	script, err := scriptFile(src)
	if err != nil {
		return "", failed(err)
	}
	defer script.Close()
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	args := []string{"--norc", "--noprofile"}
	if shell == "sh" {
		args = append(args, "--posix")
	}
	args = append(append(args, options...), "-n", "/dev/fd/3")
	var stderr limitedBuffer
	cmd := exec.Command(bash, args...)
	cmd.Env = []string{"LC_ALL=C"}
	cmd.Dir = "/"
	cmd.ExtraFiles = []*os.File{script}
	cmd.Stderr = &stderr
	cmd.WaitDelay = time.Second
	err = subprocess.Run(ctx, cmd, subprocess.Options{Started: func() { limit(cmd.Process.Pid) }})
	var exit *exec.ExitError
	switch {
	case ctx.Err() == context.DeadlineExceeded:
		return "", nil // too slow to decide
	case ctx.Err() != nil:
		return "", turnstone.NewError("syntax.check", turnstone.KindCanceled, "",
			context.Cause(ctx))
	case err == nil:
		return "", nil
	case !errors.As(err, &exit):
		return "", failed(err)
	case exit.ExitCode() != 2 && exit.ExitCode() != 1:
		return "", nil // bash died, or could not run: no verdict on the script
	}
	return stderr.String(), nil
}

// limit sets limits of a process.
func limit(pid int) {
	for resource, limit := range map[int]uint64{
		unix.RLIMIT_CPU:   uint64(checkTime / time.Second),
		unix.RLIMIT_AS:    checkMemory,
		unix.RLIMIT_FSIZE: 0,
		unix.RLIMIT_CORE:  0,
	} {
		// An error means that the process has ended.
		_ = unix.Prlimit(pid, resource, &unix.Rlimit{Cur: limit, Max: limit}, nil)
	}
}

// scriptFile puts a script into memory under a descriptor. bash reads it like a file: in blocks,
// and with its check of the first line.
func scriptFile(src []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("script", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memfd: %w", err)
	}
	f := os.NewFile(uintptr(fd), "script")
	if _, err := f.Write(src); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
