package agent

import (
	"bytes"
	"context"
	"io"
	"net"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/wire"
)

// TestRelink ends a link and begins another: running processes continue, also those that would end
// with their connection, and no command is accepted between the two.
func TestRelink(t *testing.T) {
	renewed := make(chan *wire.SandboxRenewParams, 4)
	dir := t.TempDir()
	a, err := New(Options{RunDir: dir + "/run", Cwd: dir,
		Renew: func(p *wire.SandboxRenewParams) (*wire.SandboxRenewResult, error) {
			renewed <- p
			return &wire.SandboxRenewResult{Reseeded: true}, nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	near, far := net.Pipe()
	served := make(chan error, 1)
	go func() { served <- a.Serve(t.Context(), far) }()
	port := wire.NewPort(near, true)
	connect := func() *wire.Client {
		t.Helper()
		link, err := port.Link()
		if err != nil {
			t.Fatal(err)
		}
		s, err := link.Open()
		if err != nil {
			t.Fatal(err)
		}
		return wire.NewClient(s)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := connect()
	// Without a valid request for a link's end nothing ends.
	_, err = c.SandboxSuspend(ctx, &wire.SandboxSuspendParams{Marker: []byte("short")})
	kindIs(t, err, turnstone.KindInvalid)
	if _, err := c.ProcessStart(ctx,
		&wire.ProcessStartParams{ProcessID: "loop", KillOnDisconnect: true, Stdin: true,
			Argv: script("while read -r x; do echo got $x; done")}); err != nil {
		t.Fatal(err)
	}
	say := func(c *wire.Client, text string) {
		t.Helper()
		if err := c.ProcessWrite(ctx,
			&wire.ProcessWriteParams{ProcessID: "loop", Data: []byte(text + "\n")}); err != nil {
			t.Fatal(err)
		}
	}
	say(c, "one")
	for round := range 3 {
		marker := bytes.Repeat([]byte{byte(round), 0xa5}, wire.MarkerSize/2)
		if err := port.Expect(marker); err != nil {
			t.Fatal(err)
		}
		waiting := make(chan error, 1)
		go func() { // a command in progress is canceled
			_, err := c.ProcessWait(ctx, &wire.ProcessWaitParams{ProcessID: "loop"})
			waiting <- err
		}()
		if _, err := c.SandboxSuspend(ctx,
			&wire.SandboxSuspendParams{Marker: marker, Sync: true}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.ProcessList(ctx); turnstone.KindOf(err) != turnstone.KindUnavailable &&
			turnstone.KindOf(err) != turnstone.KindDead {
			t.Errorf("a command between the two: %v", err)
		}
		if err := port.End(ctx); err != nil {
			t.Fatal(err)
		}
		if err := <-waiting; err == nil {
			t.Error("the command that waited has an answer")
		}
		c = connect()
		_, err = c.ProcessList(ctx)
		kindIs(t, err, turnstone.KindUnavailable)
		if _, err := c.SandboxRenew(ctx, &wire.SandboxRenewParams{Entropy: make([]byte, 64),
			Time: time.Now().Format(time.RFC3339Nano)}); err != nil {
			t.Fatal(err)
		}
		<-renewed
	}
	say(c, "two")
	if err := c.ProcessCloseStdin(ctx,
		&wire.ProcessCloseStdinParams{ProcessID: "loop"}); err != nil {
		t.Fatal(err)
	}
	in, err := c.Receiver(7)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.ProcessAttach(ctx,
		&wire.ProcessAttachParams{ProcessID: "loop", StdoutStream: 7}); err != nil {
		t.Fatal(err)
	}
	if out, err := io.ReadAll(in); err != nil || string(out) != "got one\ngot two\n" {
		t.Errorf("%q, %v", out, err)
	}
	_ = c.Close()
	_ = port.Close()
	if err := <-served; err != nil {
		t.Error(err)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
}

// TestSuspendIsTheMachines checks that an agent outside of a machine cannot be suspended.
func TestSuspendIsTheMachines(t *testing.T) {
	h := newHarness(t)
	_, err := h.SandboxSuspend(t.Context(),
		&wire.SandboxSuspendParams{Marker: make([]byte, wire.MarkerSize)})
	kindIs(t, err, turnstone.KindInvalid)
	_, err = h.SandboxRenew(t.Context(), &wire.SandboxRenewParams{})
	kindIs(t, err, turnstone.KindInvalid)
}
