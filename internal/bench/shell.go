package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/driver"
	"turnstone.dev/turnstone/wire"
)

func (b *bench) newSandbox(ctx context.Context) (*executor.Sandbox, error) {
	return b.create(ctx, executor.SandboxRequest{Substrate: b.substrate})
}

// shell measures the cost of tracing, and the round trip of a command to the sandbox, all in one
// sandbox, alternately.
func (b *bench) shell(ctx context.Context) error {
	s, err := b.newSandbox(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	c := s.Client()
	fmt.Printf("## The shell%s\n\n| step | plain bash | recorded | ratio |\n|---|---|---|---|\n",
		b.on())
	commands, rounds := b.divide.Of(2000), b.divide.Of(100000)
	for _, script := range []struct{ name, text string }{
		{count(commands) + " external commands", strings.Repeat("/bin/true\n", commands)},
		{fmt.Sprintf("a loop of %s builtins", count(rounds)),
			fmt.Sprintf("for ((i = 0; i < %d; i++)); do :; done\n", rounds)},
	} {
		plain, traced, err := b.pair(ctx, c, script.text, commands)
		if err != nil {
			return err
		}
		fmt.Printf("| %s | %s | %s | %.2f |\n", script.name, ms(quantile(plain, 50)),
			ms(quantile(traced, 50)), ratio(traced, plain, 50))
	}
	fmt.Println()
	return b.roundTrip(ctx, c)
}

// pairs is how often a step runs in each way.
const pairs = 5

// pair runs a step of at least some commands with and without records, alternately.
func (b *bench) pair(ctx context.Context, c *wire.Client,
	script string, commands int) (plain, traced []time.Duration, err error) {
	for range b.divide.Of(pairs) {
		for _, trace := range []bool{false, true} {
			records := int64(0)
			end, err := c.Execute(ctx, wire.ShellExecuteParams{Trace: &trace, Spans: new(bool)},
				script, wire.Stdio{},
				func(r []wire.ShellRecord) { records += int64(len(r)) })
			switch {
			case err != nil:
				return nil, nil, err
			case end.Exit.ExitCode != 0:
				return nil, nil, fmt.Errorf("the step exited %d", end.Exit.ExitCode)
			case trace && (end.Untraced != "" || records == 0 || end.Count < int64(commands)):
				return nil, nil, fmt.Errorf("%d records of %d commands: %s", records, end.Count,
					end.Untraced)
			}
			d := time.Duration(end.Exit.Duration)
			if trace {
				traced = append(traced, d)
			} else {
				plain = append(plain, d)
			}
		}
	}
	return plain, traced, nil
}

// roundTrip compares Process.start of true with the guest's own fork and exec, in a loop in its
// shell.
func (b *bench) roundTrip(ctx context.Context, c *wire.Client) error {
	n := b.divide.Of(100)
	off := false
	var own, over []time.Duration
	for range b.divide.Of(pairs) {
		end, err := c.Execute(ctx, wire.ShellExecuteParams{Trace: &off},
			fmt.Sprintf("for ((i = 0; i < %d; i++)); do /bin/true; done\n", n), wire.Stdio{}, nil)
		if err != nil {
			return err
		}
		own = append(own, time.Duration(end.Exit.Duration)/time.Duration(n))
		for range max(1, n/pairs) {
			began := time.Now()
			exit, err := c.Start(ctx, wire.ProcessStartParams{Argv: []string{"/bin/true"}},
				wire.Stdio{})
			if err == nil && exit.Exit.ExitCode != 0 {
				err = errors.New("true failed")
			}
			if err != nil {
				return err
			}
			over = append(over, time.Since(began))
		}
	}
	fmt.Printf("| `true` | p50 |\n|---|---|\n| fork, exec and wait in the guest's bash | %s |\n"+
		"| `Process.start` until its exit is known, over the wire | %s |\n| more | %s |\n\n",
		ms(quantile(own, 50)), ms(quantile(over, 50)), ms(quantile(over, 50)-quantile(own, 50)))
	return nil
}

// wire compares the wire with `cat` on the substrate's own channel.
func (b *bench) wire(ctx context.Context) error {
	s, err := b.newSandbox(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	began := time.Now()
	n := new(counter)
	if _, err := s.Client().Start(ctx,
		wire.ProcessStartParams{Argv: []string{"head", "-c", b.stream, "/dev/zero"}},
		wire.Stdio{Out: n}); err != nil {
		return err
	}
	took := time.Since(began)
	_ = s.Close()
	over := float64(*n) / 1e6 / took.Seconds()
	how, bare, err := b.bareChannel(ctx)
	if err != nil {
		return fmt.Errorf("bare channel: %w", err)
	}
	fmt.Printf("## The wire%s\n\n| %s from `head -c %s /dev/zero` | MB/s |\n|---|---|\n", b.on(),
		b.stream, b.stream)
	if bare > 0 {
		fmt.Printf("| %s, read by a plain loop | %.1f |\n", how, bare)
	}
	fmt.Printf("| over the wire, as a process's output | %.1f |\n", over)
	if bare > 0 {
		fmt.Printf("| ratio | %.2f |\n", over/bare)
	}
	fmt.Println()
	return nil
}

// bareChannel measures the substrate's own channel out of a sandbox, in MB/s; 0: there is none to
// measure.
func (b *bench) bareChannel(ctx context.Context) (how string, rate float64, err error) {
	switch b.substrate {
	case driver.QEMU:
		out, err := output(b.floor(ctx, b.substrate, "bare"))
		if err == nil {
			_, err = fmt.Sscan(out, &rate)
		}
		return "`head … \\| cat > port`, a virtio-serial port", rate, err
	case driver.GVisor:
		cmd := runscDo(ctx, "/", filepath.Join(b.dir, "runsc"),
			"head -c "+b.stream+" /dev/zero | cat")
		n := new(counter)
		cmd.Stdout = n
		began := time.Now()
		err := cmd.Run()
		return "`runsc do` of `head … \\| cat`, standard output",
			float64(*n) / 1e6 / time.Since(began).Seconds(), err
	}
	return "", 0, nil
}

type counter int64

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}

var _ io.Writer = (*counter)(nil)
