//go:build !turnstone_client

// Package subprocess starts programs that end with the process that starts them, and that inherit
// only explicitly passed resources.
package subprocess

import (
	"context"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// Options are functions that run when a program starts and ends; nil fields are ignored. All of
// them run on the thread that starts the program. That thread runs nothing else and ends with the
// program, because the parent-death signal belongs to the thread (prctl(2), PR_SET_PDEATHSIG).
type Options struct {
	// Before runs before the start; its error prevents the start. Before may change the thread's
	// properties, such as its mount namespace.
	Before func() error
	// Started runs after the program has started. The program's process ID is not reused until
	// Started returns.
	Started func()
	// Ended runs once, with the result of cmd.Wait, unless the start failed.
	Ended func(error)
}

// Start starts cmd in a new process group and returns. When this process ends in any way, the
// program gets cmd's parent-death signal, by default SIGKILL. cmd.Process may be used after Start
// has returned; the caller must not call cmd.Wait.
func Start(cmd *exec.Cmd, o Options) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = new(syscall.SysProcAttr)
	}
	if cmd.SysProcAttr.Setpgid = true; cmd.SysProcAttr.Pdeathsig == 0 {
		cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	if err := CloseOnExec(); err != nil {
		return err
	}
	started := make(chan error, 1)
	go onThread(func() {
		err := o.start(cmd)
		started <- err
		if err != nil {
			return
		}
		if err = cmd.Wait(); o.Ended != nil {
			o.Ended(err)
		}
	})
	return <-started
}

func (o Options) start(cmd *exec.Cmd) error {
	if o.Before != nil {
		if err := o.Before(); err != nil {
			return err
		}
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	if o.Started != nil {
		o.Started()
	}
	return nil
}

// Run starts cmd as Start does, and waits for its end. When ctx ends, Run kills the program and
// returns ctx's error.
func Run(ctx context.Context, cmd *exec.Cmd, o Options) error {
	ended := o.Ended
	done := make(chan error, 1)
	o.Ended = func(err error) {
		if ended != nil {
			ended(err)
		}
		done <- err
	}
	if err := Start(cmd, o); err != nil {
		return err
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		_ = cmd.Process.Kill()
		<-done
		return ctx.Err()
	}
}

// onThread runs f on a thread that ends with f. The main thread never ends, and /proc/self shows
// it, so onThread keeps the main thread busy until f runs on another thread.
func onThread(f func()) {
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
	if unix.Gettid() != unix.Getpid() {
		f()
		return
	}
	found := make(chan struct{})
	go onThread(func() { close(found); f() })
	<-found
	runtime.UnlockOSThread()
}
