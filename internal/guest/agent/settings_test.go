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

// TestImage checks what a process gets that starts what the image starts.
func TestImage(t *testing.T) {
	h := newHarness(t)
	start := func(p wire.ProcessStartParams) (string, error) {
		out := new(bytes.Buffer)
		p.Image = true
		_, err := h.Start(t.Context(), p, wire.Stdio{Out: out})
		return out.String(), err
	}
	if _, err := start(wire.ProcessStartParams{}); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Errorf("an image without a command: %v", err)
	}
	set := func(p wire.SandboxSetDefaultsParams) {
		t.Helper()
		if err := h.SandboxSetDefaults(t.Context(), &p); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	entry := script("echo $PWD $0 $*")
	set(wire.SandboxSetDefaultsParams{Entrypoint: entry, Cmd: []string{"the", "cmd"}, ImageDirectory: dir})
	set(wire.SandboxSetDefaultsParams{Cwd: "/"}) // as an adoption does
	for _, c := range []struct {
		p    wire.ProcessStartParams
		want string
	}{
		{wire.ProcessStartParams{}, dir + " the cmd\n"},
		{wire.ProcessStartParams{Argv: []string{"my", "own", "args"}}, dir + " my own args\n"},
		{wire.ProcessStartParams{Cwd: "/"}, "/ the cmd\n"},
	} {
		if out, err := start(c.p); err != nil || out != c.want {
			t.Errorf("%+v: %q, not %q; %v", c.p, out, c.want, err)
		}
	}
	set(wire.SandboxSetDefaultsParams{Cmd: script("echo $PWD")})
	if out, err := start(wire.ProcessStartParams{}); err != nil || out != "/\n" {
		t.Errorf("an image without ENTRYPOINT and WORKDIR: %q %v", out, err)
	}
	if err := h.SandboxSetDefaults(t.Context(), &wire.SandboxSetDefaultsParams{Cmd: entry,
		ImageDirectory: "relative"}); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Error(err)
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

// answering listens at an address and answers "got " and what it got, after the end of the request.
func answering(t *testing.T, address string) (uint16, io.Closer) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				b, _ := io.ReadAll(c)
				_, _ = c.Write(append([]byte("got "), b...))
				_ = c.Close()
			}()
		}
	}()
	return uint16(l.Addr().(*net.TCPAddr).Port), l
}

// exchange sends text to a port and returns its answer.
func exchange(t *testing.T, h *harness, port uint16, text []byte) []byte {
	t.Helper()
	c, err := h.ConnectPort(t.Context(), wire.SandboxConnectParams{Port: int64(port), Loopback: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	go func() {
		_, _ = c.Write(text)
		_ = c.CloseWrite()
	}()
	b, err := io.ReadAll(c)
	if err != nil {
		t.Fatalf("%d bytes: %v", len(b), err)
	}
	return b
}

// TestConnect checks connections to ports.
func TestConnect(t *testing.T) {
	h := newHarness(t)
	port, l := answering(t, "0.0.0.0:0")
	large := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	for range 40 { // more than the streams of a connection
		if b := exchange(t, h, port, large); !bytes.Equal(b, append([]byte("got "), large...)) {
			t.Fatalf("%d bytes", len(b))
		}
	}
	_ = l.Close()
	for _, port := range []int64{int64(port), 0, 70000, -1} {
		_, err := h.ConnectPort(t.Context(), wire.SandboxConnectParams{Port: port, Loopback: true})
		if err == nil {
			t.Errorf("port %d answers", port)
		}
	}
	// The agent counts a connection until both of its directions have ended, which the client does not see.
	waitFor(t, "no connection to be counted", func() bool { return len(h.a.forwards) == 0 })
}

// TestConnectWhereItListens checks that a server is reached at each address where servers listen, and one at the
// loopback by those alone that ask for it.
func TestConnectWhereItListens(t *testing.T) {
	h := newHarness(t)
	for _, address := range []string{"0.0.0.0:0", "127.0.0.1:0", "[::]:0", "[::1]:0"} {
		port, _ := answering(t, address)
		if b := exchange(t, h, port, []byte(address)); string(b) != "got "+address {
			t.Errorf("%s: %q", address, b)
		}
		if !strings.Contains(address, "1") {
			continue
		}
		if _, err := h.ConnectPort(t.Context(), wire.SandboxConnectParams{Port: int64(port)}); err == nil {
			t.Errorf("%s answers those who have not asked for the loopback", address)
		}
	}
}
