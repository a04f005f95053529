package sandboxes_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/guest/agent"
	"turnstone.dev/turnstone/sandboxes"
	"turnstone.dev/turnstone/wire"
)

// A realAgent is a machine whose agent is the real one, in the holder's process.
type realAgent struct {
	link *wire.Link
	once sync.Once
	done chan struct{}
	end  func()
}

func openReal() (*realAgent, error) {
	dir, err := os.MkdirTemp("", "agent")
	if err != nil {
		return nil, err
	}
	a, err := agent.New(agent.Options{RunDir: filepath.Join(dir, "run"), Cwd: dir})
	if err != nil {
		return nil, err
	}
	near, far := net.Pipe()
	go func() { _ = a.Serve(context.Background(), far) }()
	link, err := wire.NewLink(near, true)
	return &realAgent{link: link, done: make(chan struct{}), end: func() {
		_, _ = link.Close(), a.Close()
		_ = os.RemoveAll(dir)
	}}, err
}

func (m *realAgent) Connect() (wire.LinkStream, error) { return m.link.Open() }
func (m *realAgent) Done() <-chan struct{}             { return m.done }
func (m *realAgent) Err() error                        { return nil }

func (m *realAgent) Close() error {
	m.once.Do(func() {
		m.end()
		close(m.done)
	})
	return nil
}

// states watches a sandbox. The channel is closed after the final state.
func states(t *testing.T, s *sandboxes.Store, id turnstone.SandboxID) <-chan sandboxes.Info {
	t.Helper()
	all, ended := make(chan sandboxes.Info, 1000), make(chan struct{})
	go func() {
		defer close(ended)
		defer close(all)
		err := s.Watch(context.WithoutCancel(t.Context()), id,
			func(i sandboxes.Info) { all <- i })
		if err != nil && turnstone.KindOf(err) != turnstone.KindNotFound {
			t.Errorf("watch: %v", err)
		}
	}()
	t.Cleanup(func() { <-ended })
	return all
}

// until waits for a state.
func until(t *testing.T, all <-chan sandboxes.Info, want sandboxes.State) sandboxes.Info {
	t.Helper()
	for late := time.After(2 * time.Minute); ; {
		select {
		case i, ok := <-all:
			if !ok {
				t.Fatalf("the end came before %s", want)
			}
			if i.State == want {
				return i
			}
		case <-late:
			t.Fatalf("no %s came", want)
		}
	}
}

// admit gives the sandbox's agent a statement about a client, and returns what the client knows.
func admit(t *testing.T, s *sandboxes.Store, id turnstone.SandboxID) channel.ClientConfig {
	t.Helper()
	server, err := s.Seal(t.Context(), id, sandboxes.Seal{})
	if err != nil {
		t.Fatal(err)
	}
	c := channel.ClientConfig{Key: channel.NewKeyPair(), Server: channel.PublicKey(server)}
	c.Statement = turnstone.DigestBytes(append(c.Server[:], c.Key.Public[:]...))
	again, err := s.Seal(t.Context(), id, sandboxes.Seal{Statement: c.Statement,
		Clients: []sandboxes.ChannelKey{sandboxes.ChannelKey(c.Key.Public)},
		Expires: time.Now().Add(time.Hour)})
	if err != nil || again != server {
		t.Fatalf("%v, %v and %v", err, again, server)
	}
	return c
}

// TestStatesAreExact runs commands in a channel, whose bytes the holder cannot read: the sandbox is
// running as long as one of them runs, and nothing is written for that.
func TestStatesAreExact(t *testing.T) {
	s := newStore(t)
	i := create(t, s, spec("agent"))
	all := states(t, s, i.ID)
	until(t, all, sandboxes.StateReady)
	config := admit(t, s, i.ID)
	stream, err := s.OpenChannel(t.Context(), i.ID)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := channel.Client(t.Context(), stream, config)
	if err != nil {
		t.Fatal(err)
	}
	c := wire.NewClient(conn)
	defer func() { _ = c.Close() }()
	file := filepath.Join(s.Dir(), string(i.ID), "state.json")
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for round := range 3 {
		in, out := io.Pipe()
		var got bytes.Buffer
		ended := make(chan error, 1)
		go func() {
			_, err := c.Start(t.Context(), wire.ProcessStartParams{Argv: []string{"cat"}},
				wire.Stdio{In: in, Out: &got})
			ended <- err
		}()
		until(t, all, sandboxes.StateRunning)
		if now, err := s.Get(i.ID); err != nil || now.State != sandboxes.StateRunning {
			t.Errorf("round %d: it is %s, %v", round, now.State, err)
		}
		if got := names(t, s); !slices.Equal(got, []string{" running"}) {
			t.Errorf("round %d: the list says %q", round, got)
		}
		_, _ = out.Write([]byte("hello"))
		_ = out.Close()
		if err := <-ended; err != nil || got.String() != "hello" {
			t.Fatalf("%q, %v", got.String(), err)
		}
		until(t, all, sandboxes.StateReady)
	}
	if after, err := os.ReadFile(file); err != nil || !bytes.Equal(after, before) {
		t.Errorf("state.json was written: %s, %v", after, err)
	}
	if err := s.Stop(t.Context(), i.ID); err != nil {
		t.Fatal(err)
	}
	if i := until(t, all, sandboxes.StateStopped); i.Reason != "on request" {
		t.Errorf("%+v", i)
	}
	for range states(t, s, i.ID) { // a sandbox that has ended: one call
	}
}

// TestHolderDiesWhileWatched: a watcher learns of it.
func TestHolderDiesWhileWatched(t *testing.T) {
	s := newStore(t)
	i := create(t, s, spec("fine"))
	all := states(t, s, i.ID)
	until(t, all, sandboxes.StateReady)
	p, err := os.FindProcess(i.Holder.PID)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	until(t, all, sandboxes.StateFailed)
}

// TestManyWatchers: those beyond the bound get one report, and Get still answers.
func TestManyWatchers(t *testing.T) {
	s := newStore(t)
	i := create(t, s, spec("fine"))
	for range 80 {
		conn, err := net.Dial("unix", filepath.Join(s.Dir(), string(i.ID), "watch.sock"))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
	}
	if got, err := s.Get(i.ID); err != nil || got.State != sandboxes.StateReady {
		t.Errorf("%s, %v", got.State, err)
	}
}

// TestUnknownActivity: a sandbox whose agent is too old to report is not taken for idle.
func TestUnknownActivity(t *testing.T) {
	s := newStore(t)
	i := create(t, s, spec("old"))
	if got, err := s.Get(i.ID); err != nil || got.State != sandboxes.StateRunning {
		t.Errorf("%s, %v", got.State, err)
	}
}

// TestSilentActivity: neither is a sandbox whose agent stops reporting.
func TestSilentActivity(t *testing.T) {
	s := newStore(t)
	i := create(t, s, spec("rude"))
	await(t, s, i.ID, sandboxes.StateRunning)
}

// TestOpenChannelNeverInTheClear: no client reaches the agent as the host does.
func TestOpenChannelNeverInTheClear(t *testing.T) {
	s := newStore(t)
	i := create(t, s, spec("agent"))
	config := admit(t, s, i.ID)
	for _, sent := range []string{"\x81\x85\x00\x00\x00\x00hello", "TSC2", "GET / HTTP/1.1\r\n\r\n"} {
		stream, err := s.OpenChannel(t.Context(), i.ID)
		if err != nil {
			t.Fatal(err)
		}
		var n int64
		n, err = io.Copy(stream, strings.NewReader(sent))
		if turnstone.KindOf(err) != turnstone.KindInvalid || n >= int64(len(channel.Magic)) {
			t.Errorf("%q: %d bytes, %v", sent, n, err)
		}
		if _, err := stream.Write([]byte("more")); err == nil {
			t.Errorf("%q: the stream is open", sent)
		}
	}
	// In the pieces in which a relay may give it, a channel begins.
	stream, err := s.OpenChannel(t.Context(), i.ID)
	if err != nil {
		t.Fatal(err)
	}
	near, far := net.Pipe()
	go func() { _, _ = io.CopyBuffer(struct{ io.Writer }{stream}, far, make([]byte, 3)) }()
	go func() { _, _ = io.Copy(far, stream); _ = far.Close() }()
	conn, err := channel.Client(t.Context(), near, config)
	if err != nil {
		t.Fatal(err)
	}
	c := wire.NewClient(conn)
	if _, err := c.SandboxGetVersion(t.Context()); err != nil {
		t.Error(err)
	}
	err = func() error { _, err := c.SandboxActivity(t.Context()); return err }()
	if turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Errorf("a command of the host: %v", err)
	}
	_ = c.Close()
}

// TestChannelsLeaveRoom: clients of channels that do nothing, or too many of them, keep no other
// client out.
func TestChannelsLeaveRoom(t *testing.T) {
	s := newStore(t)
	i := create(t, s, spec("agent"))
	refused := make(chan bool, 80)
	for range 80 {
		stream, err := s.OpenChannel(t.Context(), i.ID)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = stream.Close() }()
		go func() { // in silence: a client would take words for a manipulation
			n, err := stream.Read(make([]byte, 1))
			refused <- n == 0 && errors.Is(err, io.EOF)
		}()
		use(t, s, i.ID, "a connection of wire.sock")
	}
	for range 16 { // and the others are still open
		if !<-refused {
			t.Error("a stream was not refused in silence")
		}
	}
	_, err := s.OpenChannel(t.Context(), "sb_000000000000000000")
	if turnstone.KindOf(err) != turnstone.KindNotFound {
		t.Errorf("%v", err)
	}
}
