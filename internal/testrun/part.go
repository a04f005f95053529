package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// A part is a command of a run.
type part struct {
	name string
	argv []string
	dir  string   // below the checkout; "" is its root
	env  []string // more variables, or other values
	// tests tells that argv is go test, whose tests are counted. Of the other parts the output is printed at
	// their end.
	tests bool
	ended func(pkg string, failed []string) error // called for each package of tests; nil: nobody asks
	alone bool                                    // the tests of one package, which are counted; else packages are
	total int                                     // of what is counted, 0 if unknown
	// inputs are the files and folders that the result depends on: a part that has passed with them does not
	// run again. None: it always runs.
	inputs []string
}

// A result is how a part ended.
type result struct {
	name   string
	err    error
	took   time.Duration
	cpu    time.Duration // of the command and all processes that were waited for
	suite  *suite        // nil if the part is no go test
	cached bool          // the part did not run
}

// run runs the part to its end. It prints whole lines, never in the middle of what another part prints.
func (p *part) run(ctx context.Context, r *runner) result {
	began := time.Now()
	res := result{name: p.name}
	digest, err := p.digest(r.root)
	if err != nil {
		res.err = err
		return res
	}
	if res.cached = r.passed(p.name, digest); res.cached {
		return res
	}
	cmd := exec.CommandContext(ctx, p.argv[0], p.argv[1:]...)
	cmd.Dir = filepath.Join(r.root, p.dir)
	cmd.Env = append(os.Environ(), p.env...)
	// A process group of its own, and a way to end it whole.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = time.Minute
	if p.tests {
		err = p.events(cmd, r, &res)
	} else {
		err = p.whole(cmd, r)
	}
	res.err, res.took = err, time.Since(began)
	if cmd.ProcessState != nil {
		res.cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}
	if err == nil {
		res.err = r.keep(p.name, digest)
	}
	return res
}

// whole prints the output of a command at its end.
func (p *part) whole(cmd *exec.Cmd, r *runner) error {
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	r.print(out.String())
	return err
}

// events runs go test -json.
func (p *part) events(cmd *exec.Cmd, r *runner, res *result) error {
	s := newSuite(r.print)
	s.ended = p.ended
	res.suite = s
	r.watch(p, s)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		return err
	}
	read := s.read(out)
	if read != nil {
		_, _ = io.Copy(io.Discard, out)
	}
	err = errors.Join(cmd.Wait(), read, s.err)
	r.print(said.String())
	return err
}

// line is what go test and this program both say of a part.
func (res result) line() string {
	switch {
	case res.cached:
		return fmt.Sprintf("%-22s unchanged", res.name)
	case res.err != nil:
		return fmt.Sprintf("%-22s FAILED: %v", res.name, res.err)
	}
	return fmt.Sprintf("%-22s passed in %s", res.name, round(res.took))
}

// round returns d in seconds, which is what a reader compares.
func round(d time.Duration) string { return d.Round(time.Second).String() }
