package kit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/console"
	"turnstone.dev/turnstone/internal/subprocess"
)

// started returns the process of a program that runs until it is killed, and the reason for its end
// unless another reason is known.
func started(t *testing.T) (p *Process, own error) {
	t.Helper()
	p = New("sb_x", console.New(), "advice")
	own = turnstone.Errorf("test.run", turnstone.KindDead, "sb_x", "it ended")
	ended := func(error) { p.End(func() error { return own }) }
	if err := p.Start(exec.Command("sleep", "1000"), subprocess.Options{Ended: ended}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p, own
}

// TestEnd checks that a requested end is no error, that the first reason counts, and that the
// program's end counts only if no reason is known.
func TestEnd(t *testing.T) {
	p, own := started(t)
	if p.Err() != nil || p.Closed() {
		t.Error("it has ended before it has")
	}
	_ = p.Kill()
	<-p.Done()
	if err := p.Err(); !errors.Is(err, own) {
		t.Error(err)
	}
	p, _ = started(t)
	first := errors.New("first")
	p.Blame(first)
	p.Blame(errors.New("second"))
	_ = p.Kill()
	<-p.Done()
	if err := p.Err(); !errors.Is(err, first) {
		t.Error(err)
	}
	p, _ = started(t)
	p.Blame(first)
	for range 2 {
		if err := p.Close(); err != nil || p.Err() != nil || !p.Closed() {
			t.Errorf("%v, %v", err, p.Err())
		}
	}
}

// TestDup checks that a file is available until the machine is closed, and outlives it.
func TestDup(t *testing.T) {
	p, _ := started(t)
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	other, err := p.Dup("test.disk", f)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = p.Close(), f.Close()
	if _, err := other.WriteString("x"); err != nil {
		t.Error(err)
	}
	_ = other.Close()
	if _, err := p.Dup("test.disk", f); turnstone.KindOf(err) != turnstone.KindDead {
		t.Error(err)
	}
}

// TestWait checks all ways in which the wait for an agent ends.
func TestWait(t *testing.T) {
	patience := console.Patience{Idle: time.Minute, Work: time.Minute, Limit: time.Minute}
	load := func() (console.Load, error) { return console.Load{}, errors.ErrUnsupported }
	for _, tt := range []struct {
		name string
		do   func(p *Process, cancel func())
		kind turnstone.Kind // empty: the agent is ready
		hint string
		text string
	}{
		{"ready", func(p *Process, _ func()) { fmt.Fprintln(p.Console, console.ReadyLine) }, "", "",
			""},
		{"failed", func(p *Process,
			_ func()) {
			fmt.Fprintln(p.Console, "turnstone-agent: failed: no disk")
		},
			turnstone.KindDead, "advice", "sb_x: the guest's agent does not start: no disk"},
		{"ended", func(p *Process, _ func()) { _ = p.Kill() }, turnstone.KindDead, "",
			"sb_x: it ended"},
		{"closed", func(p *Process, _ func()) { _ = p.Close() }, turnstone.KindDead, "",
			"sb_x: the sandbox is closed"},
		{"late", func(p *Process, _ func()) { patience.Limit = 0 }, turnstone.KindDead, "advice",
			"sb_x: the guest did not start within 0s: that is too long; the console is empty"},
	} {
		p, _ := started(t)
		ctx, cancel := context.WithCancel(t.Context())
		tt.do(p, cancel)
		err := p.Wait(ctx, "test.boot", patience, load)
		switch {
		case tt.kind == "" && err == nil:
		case tt.kind == "" || err == nil || err.Error() != tt.text ||
			turnstone.KindOf(err) != tt.kind || turnstone.HintOf(err) != tt.hint:
			t.Errorf("%s: %v (%s)", tt.name, err, turnstone.HintOf(err))
		}
		cancel()
		_ = p.Close()
	}
	p, _ := started(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Wait(ctx, "test.boot", console.Patience{Limit: time.Minute}, load); !errors.Is(err,
		context.Canceled) {
		t.Error(err)
	}
}

// TestNotSnapshotted checks that a machine's own reason counts first, then typed errors.
func TestNotSnapshotted(t *testing.T) {
	p, own := started(t)
	typed := turnstone.Errorf("a.b", turnstone.KindInvalid, "x", "y")
	full := &os.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	check := func(ctx context.Context, err, want error, kind turnstone.Kind, hint string) {
		t.Helper()
		got := p.NotSnapshotted(ctx, "test.snapshot", "/a/b", err)
		if !errors.Is(got, want) || turnstone.KindOf(got) != kind || turnstone.HintOf(got) != hint {
			t.Errorf("%v: %v, %s (%s)", err, got, turnstone.KindOf(got), turnstone.HintOf(got))
		}
	}
	check(t.Context(), typed, typed, turnstone.KindInvalid, "")
	check(t.Context(), io.EOF, io.EOF, turnstone.KindUnavailable, "")
	check(t.Context(), full, full, turnstone.KindExhausted,
		"free some space on the disk that contains /a")
	check(gone, full, full, turnstone.KindCanceled, "")
	if err := p.NotSnapshotted(gone, "test.snapshot", "/a/b", nil); err != nil {
		t.Error(err)
	}
	_ = p.Kill()
	<-p.Done()
	check(t.Context(), typed, own, turnstone.KindDead, "")
}

// TestFault checks that errors with a kind stay unchanged.
func TestFault(t *testing.T) {
	typed := turnstone.Errorf("a.b", turnstone.KindInvalid, "x", "y")
	for _, tt := range []struct {
		err  error
		kind turnstone.Kind
		hint string
	}{
		{typed, turnstone.KindInvalid, ""},
		{io.EOF, turnstone.KindUnavailable, "help"},
		{syscall.EDQUOT, turnstone.KindExhausted, "free some space on the disk that contains /a"},
		{context.Canceled, turnstone.KindCanceled, ""},
	} {
		if got := Fault("test.boot", "driver", "/a", tt.err, "help"); !errors.Is(got, tt.err) ||
			turnstone.KindOf(got) != tt.kind || turnstone.HintOf(got) != tt.hint {
			t.Errorf("%v: %v (%s)", tt.err, got, turnstone.HintOf(got))
		}
	}
	if err := Fault("test.boot", "driver", "/a", nil, "help"); err != nil {
		t.Error(err)
	}
}
