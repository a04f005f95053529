package agent

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/guest/forward"
	"turnstone.dev/turnstone/internal/guest/record"
	"turnstone.dev/turnstone/wire"
)

// TestDefaults checks what a process gets that names no directory, and that a process may name one.
func TestDefaults(t *testing.T) {
	h := newHarness(t)
	dir := t.TempDir()
	if err := h.SandboxSetDefaults(t.Context(),
		&wire.SandboxSetDefaultsParams{Cwd: dir}); err != nil {
		t.Fatal(err)
	}
	for cwd, want := range map[string]string{"": dir, "/": "/"} {
		out := new(bytes.Buffer)
		if _, err := h.Start(t.Context(), wire.ProcessStartParams{Argv: script("pwd"), Cwd: cwd},
			wire.Stdio{Out: out}); err != nil || out.String() != want+"\n" {
			t.Errorf("%q: %q %v", cwd, out, err)
		}
	}
	if err := h.SandboxSetDefaults(t.Context(),
		&wire.SandboxSetDefaultsParams{Cwd: "relative"}); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Error(err)
	}
	if !wire.HostOnly(wire.MethodSandboxSetDefaults) {
		t.Error("a client can change what others get")
	}
}

// TestAddSecrets checks that processes and steps get secrets, and that the host knows them before.
func TestAddSecrets(t *testing.T) {
	h := newHarness(t)
	early, follower := h.record(), h.listen(nil)
	if res, err := follower.SandboxActivity(t.Context()); err != nil || res.Secrets != nil {
		t.Fatalf("%+v %v", res, err)
	}
	add := func(all ...string) error {
		return h.SandboxAddSecrets(t.Context(), &wire.SandboxAddSecretsParams{Secrets: all})
	}
	if err := add("KEY=sesame-open", "OTHER=one"); err != nil {
		t.Fatal(err)
	}
	if err := add("OTHER=two"); err != nil {
		t.Fatal(err)
	}
	out := new(bytes.Buffer)
	if _, err := h.Start(t.Context(), wire.ProcessStartParams{Argv: script("echo $KEY $OTHER")},
		wire.Stdio{Out: out}); err != nil || out.String() != "sesame-open two\n" {
		t.Errorf("%q %v", out, err)
	}
	if r := h.bash("echo $KEY"); !strings.Contains(fmt.Sprint(r), "sesame-open") {
		t.Errorf("a step: %+v", r)
	}
	late := h.record()
	for name, l := range map[string]*listener{"early": early, "late": late} {
		e := next[wire.SandboxSecretsAddedEvent](l)
		if name == "early" { // the second has all
			e = next[wire.SandboxSecretsAddedEvent](l)
		}
		if !slices.Equal(e.Secrets, []string{"KEY=sesame-open", "OTHER=two"}) {
			t.Errorf("%s: %+v", name, e)
		}
	}
	if e := next[wire.SandboxSecretsAddedEvent](follower); !slices.Equal(e.Names,
		[]string{"KEY", "OTHER"}) || e.Secrets != nil {
		t.Errorf("%+v", e)
	}
	if res, err := follower.SandboxActivity(t.Context()); err != nil ||
		!slices.Equal(res.Secrets, []string{"KEY", "OTHER"}) {
		t.Errorf("%+v %v", res, err)
	}
	for _, bad := range []string{"sesame", "=sesame", "A=sesame\x00", "A=" +
		strings.Repeat("sesame", record.MaxSecret)} {
		if err := add(bad); turnstone.KindOf(err) != turnstone.KindInvalid ||
			strings.Contains(err.Error(), "sesame") {
			t.Error(err)
		}
	}
	var many []string
	for i := range record.MaxSecrets {
		many = append(many, fmt.Sprintf("N%d=value", i))
	}
	if err := add(many...); turnstone.KindOf(err) != turnstone.KindExhausted {
		t.Error(err)
	}
}

// TestConnect checks connections to ports, at the address of a network card.
func TestConnect(t *testing.T) {
	h := newHarness(t)
	l, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	port := uint16(l.Addr().(*net.TCPAddr).Port)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { // it answers after the end of the request
				b, _ := io.ReadAll(c)
				_, _ = c.Write(append([]byte("got "), b...))
				_ = c.Close()
			}()
		}
	}()
	if c, err := forward.Dial(t.Context(), int(port)); err == nil {
		_ = c.Close()
	} else { // a machine without a network card
		if _, err := h.ConnectPort(t.Context(), port); err == nil ||
			!strings.Contains(err.Error(), "has no network") {
			t.Error(err)
		}
		return
	}
	large := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	for range 40 { // more than the streams of a connection
		c, err := h.ConnectPort(t.Context(), port)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			_, _ = c.Write(large)
			_ = c.CloseWrite()
		}()
		b, err := io.ReadAll(c)
		if err != nil || !bytes.Equal(b, append([]byte("got "), large...)) {
			t.Fatalf("%d bytes: %v", len(b), err)
		}
		_ = c.Close()
	}
	_ = l.Close()
	for _, port := range []int64{int64(port), 0, 70000, -1} {
		_, err := h.ConnectPort(t.Context(), uint16(port))
		if err == nil {
			t.Errorf("port %d answers", port)
		}
	}
	// The agent counts a connection until both of its directions have ended, which the client does not see.
	waitFor(t, "no connection to be counted", func() bool { return len(h.a.forwards) == 0 })
}
