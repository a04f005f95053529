package remote_test

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/leaktest"
	"turnstone.dev/turnstone/internal/remote"
	"turnstone.dev/turnstone/internal/server/node/turns"
	"turnstone.dev/turnstone/internal/turntest"
	"turnstone.dev/turnstone/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(leaktest.Patient(m)) }

// node is a node behind a channel: what a client reaches through relays.
type node struct {
	t        *testing.T
	service  *turns.Service
	key      channel.KeyPair
	client   channel.KeyPair
	digest   turnstone.Digest
	admitted channel.Statements

	mu    sync.Mutex
	wg    sync.WaitGroup
	dials int
	bytes int64                                 // that the next connections may carry before they are lost; 0: any
	flip  int64                                 // the byte of the node's that the relay changes; 0: none
	wrap  func(wire.TurnServer) wire.TurnServer // of what clients reach; nil: nothing
}

func newNode(t *testing.T, x turns.Executor) *node {
	t.Helper()
	s, err := turns.Open(filepath.Join(t.TempDir(), "turns"), x, 4)
	if err != nil {
		t.Fatal(err)
	}
	n := &node{t: t, service: s, key: channel.NewKeyPair(), client: channel.NewKeyPair(),
		digest: turnstone.DigestBytes([]byte("statement"))}
	if err := n.admitted.Add(n.digest, []channel.PublicKey{n.client.Public},
		time.Now().Add(24*time.Hour)); err != nil { // a client gets a new one for each connection
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close(); n.wg.Wait() })
	return n
}

// ticket reserves a turn.
func (n *node) ticket(id, session string) string {
	n.t.Helper()
	if err := n.service.Reserve(turns.Ticket{ID: id, Client: n.client.Public, Session: session,
		Expires: time.Now().Add(time.Hour)}); err != nil {
		n.t.Fatal(err)
	}
	return id
}

// dial connects a client through a relay, which may lose the connection.
func (n *node) dial(ctx context.Context) (io.ReadWriteCloser, error) {
	n.mu.Lock()
	n.dials++
	carry := n.bytes
	n.mu.Unlock()
	near, relayNear := net.Pipe()
	relayFar, far := net.Pipe()
	if n.flip > 0 {
		relayFar = &flipping{Conn: relayFar, left: n.flip}
	}
	n.wg.Go(func() { relay(relayNear, relayFar, carry) })
	n.wg.Go(func() {
		c, err := channel.Server(context.Background(), far, channel.ServerConfig{Key: n.key,
			Registry: &n.admitted})
		if err != nil {
			return
		}
		d := wire.NewDispatcher()
		served := n.service.For(c.Peer(), func(ctx context.Context) context.Context { return ctx })
		if n.wrap != nil {
			served = n.wrap(served)
		}
		wire.RegisterTurn(d, served)
		conn := wire.NewConn(c, wire.Options{Dispatcher: d})
		conn.Wait()
	})
	c, err := channel.Client(ctx, near, channel.ClientConfig{Key: n.client,
		Server: n.key.Public, Statement: n.digest})
	if err != nil {
		return nil, turnstone.NewError("remote.dial", turnstone.KindDead, "the node", err)
	}
	return c, nil
}

// relay copies bytes until either end closes, or until it carried a number of bytes.
func relay(a, b net.Conn, carry int64) {
	var wg sync.WaitGroup
	one := func(to, from net.Conn) {
		defer func() { _ = to.Close(); _ = from.Close() }()
		if carry > 0 {
			_, _ = io.CopyN(to, from, carry)
			return
		}
		_, _ = io.Copy(to, from)
	}
	wg.Go(func() { one(a, b) })
	wg.Go(func() { one(b, a) })
	wg.Wait()
}

// flipping changes one byte of what is read.
type flipping struct {
	net.Conn
	left int64
}

func (f *flipping) Read(p []byte) (int, error) {
	n, err := f.Conn.Read(p)
	if f.left > 0 && f.left <= int64(n) {
		p[f.left-1] ^= 1
	}
	f.left -= int64(n)
	return n, err
}

// TestManipulated changes a byte of a connection that carries a turn's output: the turn's follower
// names it, and does not connect again.
func TestManipulated(t *testing.T) {
	for _, at := range []int64{20, 1000, 9000, 40_000} {
		n := newNode(t, &teller{})
		n.flip = at
		dial := n.dial
		if at < 100 { // of the handshake, which the Dialer opens
			dial = func(ctx context.Context) (io.ReadWriteCloser, error) {
				c, err := n.dial(ctx)
				return c, errors.Unwrap(err)
			}
		}
		_, err := (&remote.Turns{Dial: dial, Pause: time.Millisecond}).Run(t.Context(),
			remote.TurnRequest{Ticket: n.ticket("k_00000001", ""),
				Document: parse(t, "```bash\necho\n```\n")}, nil)
		if f := channel.FaultOf(err); f == "" || turnstone.KindOf(err) != turnstone.KindIntegrity ||
			n.dials != 1 {
			t.Errorf("byte %d: fault %q, %s, %d connections: %v", at, f, turnstone.KindOf(err),
				n.dials, err)
		}
	}
}

func parse(t *testing.T, text string) *document.Document {
	t.Helper()
	doc, err := document.Parse("a.md", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

// teller is an executor that tells of much output, and counts its runs.
type teller struct {
	mu   sync.Mutex
	runs int
	wait chan struct{} // closed: the turn goes on; nil: it does not wait
}

func (x *teller) Run(ctx context.Context, r executor.Request, o executor.Observer) (
	*turnstone.TurnReport, error) {
	x.mu.Lock()
	x.runs++
	x.mu.Unlock()
	step := r.Document.Steps[0]
	o.StepStarted(step)
	for range 50 {
		o.StepOutput(step, turnstone.Stdout, []byte(strings.Repeat("x", 1000)))
	}
	if x.wait != nil {
		select {
		case <-x.wait:
		case <-ctx.Done():
			return &turnstone.TurnReport{Result: turnstone.ResultError,
				Kind: turnstone.KindCanceled}, ctx.Err()
		}
	}
	o.StepFinished(step, turnstone.StepReport{})
	return &turnstone.TurnReport{Result: turnstone.ResultPassed, Receipt: "receipt"}, nil
}

func (x *teller) Times(ctx context.Context, r executor.Request, _ int, o executor.Observer) (
	*turnstone.TurnReport, error) {
	return x.Run(ctx, r, o)
}

// heard counts the bytes of output.
type heard struct {
	mu       sync.Mutex
	out      strings.Builder
	started  int
	finished int
	first    func()
}

func (h *heard) Preparing(string) {}
func (h *heard) StepStarted(*document.Step) {
	h.started++
	if h.first != nil {
		h.first()
	}
}
func (h *heard) StepOutput(_ *document.Step, _ turnstone.Stream, p []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.out.Write(p)
}
func (h *heard) StepFinished(*document.Step, turnstone.StepReport) { h.finished++ }

// TestLostConnections loses connections at any byte: the turn runs once, and each byte of its
// output arrives once.
func TestLostConnections(t *testing.T) {
	for _, carry := range []int64{0, 300, 700, 2_000, 9_000, 30_000 + rand.Int64N(9000)} {
		x := &teller{}
		n := newNode(t, x)
		n.bytes = carry
		var h heard
		h.first = func() {}
		turn := &remote.Turns{Dial: func(ctx context.Context) (io.ReadWriteCloser, error) {
			n.mu.Lock()
			if n.bytes > 0 { // the relay gets better, so that the test ends
				n.bytes += n.bytes / 2
			}
			n.mu.Unlock()
			return n.dial(ctx)
		}, Pause: time.Millisecond}
		report, err := turn.Run(t.Context(), remote.TurnRequest{Ticket: n.ticket("k_00000001", ""),
			Document: parse(t, "```bash\necho\n```\n")}, &h)
		if err != nil || report.Receipt != "receipt" {
			t.Fatalf("%d bytes: %+v %s: %v", carry, report, turnstone.KindOf(err), err)
		}
		if x.runs != 1 || h.out.Len() != 50_000 || h.started != 1 || h.finished != 1 {
			t.Fatalf("%d bytes: %d runs, %d bytes of output, %d starts, %d ends; %d connections",
				carry, x.runs, h.out.Len(), h.started, h.finished, n.dials)
		}
		if carry == 300 && n.dials < 3 {
			t.Fatalf("%d connections", n.dials)
		}
	}
}

// late is a node at which the first start of a turn arrives between the questions of the client, which
// has lost that start's connection.
type late struct {
	wire.TurnServer
	lose  func()       // loses the first connection
	start func() error // is the start that arrives late
	state *lateState
}

type lateState struct{ starts, attaches atomic.Int64 }

func (l late) Start(ctx context.Context, c *wire.Conn, p *wire.TurnStartParams) error {
	if l.state.starts.Add(1) == 1 {
		l.lose()
		<-ctx.Done()
		return context.Cause(ctx)
	}
	return l.TurnServer.Start(ctx, c, p)
}

func (l late) Attach(ctx context.Context, c *wire.Conn, p *wire.TurnAttachParams) (
	*wire.TurnAttachResult, error) {
	a, err := l.TurnServer.Attach(ctx, c, p)
	if l.state.attaches.Add(1) == 1 && turnstone.KindOf(err) == turnstone.KindNotFound {
		err = errors.Join(l.start(), err)
	}
	return a, err
}

// TestLateStart: a start whose connection the client has lost takes effect after the client has asked
// for its turn, and before it starts it again. The client follows the turn, which runs once.
func TestLateStart(t *testing.T) {
	x := &teller{}
	n := newNode(t, x)
	ticket := n.ticket("k_00000001", "")
	var mu sync.Mutex
	var first io.Closer
	l := late{state: new(lateState), lose: func() {
		mu.Lock()
		defer mu.Unlock()
		_ = first.Close()
	}}
	source := "```bash\necho\n```\n"
	l.start = func() error {
		stream, err := n.dial(t.Context())
		if err != nil {
			return err
		}
		c := wire.NewClient(stream)
		defer func() { _ = c.Close(); c.Wait() }()
		return c.Feed(strings.NewReader(source), func(id wire.StreamID) error {
			return c.TurnStart(t.Context(), &wire.TurnStartParams{Ticket: ticket, Name: "a.md",
				Document: id})
		})
	}
	n.wrap = func(s wire.TurnServer) wire.TurnServer {
		l := l
		l.TurnServer = s
		return l
	}
	dial := func(ctx context.Context) (io.ReadWriteCloser, error) {
		mu.Lock()
		defer mu.Unlock()
		c, err := n.dial(ctx)
		if first == nil {
			first = c
		}
		return c, err
	}
	report, err := (&remote.Turns{Dial: dial, Pause: time.Millisecond}).Run(t.Context(),
		remote.TurnRequest{Ticket: ticket, Document: parse(t, source)}, nil)
	if err != nil || report.Receipt != "receipt" || x.runs != 1 || l.state.starts.Load() != 3 {
		t.Fatalf("%+v %v; %d runs, %d starts", report, err, x.runs, l.state.starts.Load())
	}
}

// back is a node at which a turn is that it had before, with another journal: the first follower reads
// some of the former one, and loses its connection.
type back struct {
	wire.TurnServer
	former string
	once   *sync.Once
}

func (b back) Attach(ctx context.Context, c *wire.Conn, p *wire.TurnAttachParams) (
	a *wire.TurnAttachResult, err error) {
	b.once.Do(func() {
		out, failed := c.Sender(p.Journal)
		if failed == nil {
			_, failed = io.WriteString(out, b.former)
		}
		if err = failed; err == nil {
			err = out.Close()
		}
		<-ctx.Done() // the client has lost the connection
		err = errors.Join(err, context.Cause(ctx))
	})
	if err != nil {
		return nil, err
	}
	return b.TurnServer.Attach(ctx, c, p)
}

// TestBackAtNode: a follower that has read the journal of a former attempt reads that of the present one
// from its beginning, whatever of it the old place is: in a line, after a line, or behind its end.
func TestBackAtNode(t *testing.T) {
	const line = `{"preparing":"the former attempt"}` + "\n"
	for name, former := range map[string]string{"in a line": line, "behind the end": strings.Repeat(line, 5000)} {
		t.Run(name, func(t *testing.T) {
			x := &teller{}
			n := newNode(t, x)
			var stream io.Closer
			var h heard
			h.first = func() {}
			seen := 0
			obs := &formerHeard{heard: &h, seen: func() {
				if seen++; seen == strings.Count(former, "\n") {
					_ = stream.Close()
				}
			}}
			once := new(sync.Once)
			n.wrap = func(s wire.TurnServer) wire.TurnServer { return back{s, former, once} }
			dial := func(ctx context.Context) (io.ReadWriteCloser, error) {
				c, err := n.dial(ctx)
				stream = c
				return c, err
			}
			report, err := (&remote.Turns{Dial: dial, Pause: time.Millisecond}).Run(t.Context(),
				remote.TurnRequest{Ticket: n.ticket("k_00000001", ""),
					Document: parse(t, "```bash\necho\n```\n")}, obs)
			if err != nil || report.Receipt != "receipt" || x.runs != 1 || h.out.Len() != 50_000 {
				t.Fatalf("%+v %v; %d runs, %d bytes of output", report, err, x.runs, h.out.Len())
			}
		})
	}
}

// formerHeard calls seen for each line of a former attempt.
type formerHeard struct {
	*heard
	seen func()
}

func (f *formerHeard) Preparing(string) { f.seen() }

// TestCallerEnds cancels a turn with its caller, who gets its result.
func TestCallerEnds(t *testing.T) {
	n := newNode(t, &teller{wait: make(chan struct{})})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	h := &heard{first: cancel}
	report, err := (&remote.Turns{Dial: n.dial}).Run(ctx, remote.TurnRequest{
		Ticket: n.ticket("k_00000001", ""), Document: parse(t, "```bash\necho\n```\n")}, h)
	if err == nil || report == nil || report.Kind != turnstone.KindCanceled {
		t.Fatalf("%+v %v", report, err)
	}
}

// TestNotAgain does not try again what the node refused.
func TestNotAgain(t *testing.T) {
	n := newNode(t, &teller{})
	_, err := (&remote.Turns{Dial: n.dial}).Run(t.Context(), remote.TurnRequest{
		Ticket: "k_00000009", Document: parse(t, "```bash\necho\n```\n")}, nil)
	if turnstone.KindOf(err) != turnstone.KindNotFound || n.dials != 1 {
		t.Fatalf("%v after %d connections", err, n.dials)
	}
}

// TestTokenEnds: a client whose token ends while its turn runs is told so at once, as what it is, and
// the turn goes on.
func TestTokenEnds(t *testing.T) {
	n := newNode(t, &teller{wait: make(chan struct{})})
	refused := turnstone.Errorf("auth.verify", turnstone.KindDenied, "the token", "is revoked")
	var mu sync.Mutex
	var open io.Closer
	ended := &heard{first: func() {
		mu.Lock()
		defer mu.Unlock()
		_ = open.Close() // as a gateway does
	}}
	dial := func(ctx context.Context) (io.ReadWriteCloser, error) {
		mu.Lock()
		defer mu.Unlock()
		if open != nil {
			return nil, refused
		}
		c, err := n.dial(ctx)
		open = c
		return c, err
	}
	_, err := (&remote.Turns{Dial: dial, Pause: time.Millisecond}).Run(t.Context(),
		remote.TurnRequest{Ticket: n.ticket("k_00000001", ""), Document: parse(t,
			"```bash\necho\n```\n")}, ended)
	if turnstone.KindOf(err) != turnstone.KindDenied || !errors.Is(err, refused) ||
		!strings.Contains(turnstone.HintOf(err), "new token") {
		t.Fatalf("%s: %v; %s", turnstone.KindOf(err), err, turnstone.HintOf(err))
	}
	if n.service.Count() != 1 {
		t.Fatal("the turn ended with its client's token")
	}
}

// TestImpatient gives up when no connection comes about for too long.
func TestImpatient(t *testing.T) {
	gone := func(context.Context) (io.ReadWriteCloser, error) {
		return nil, turnstone.Errorf("remote.dial", turnstone.KindUnavailable, "the node", "is away")
	}
	_, err := (&remote.Turns{Dial: gone, Patience: 300 * time.Millisecond}).Run(t.Context(),
		remote.TurnRequest{Ticket: "k_00000009", Document: parse(t, "```bash\necho\n```\n")}, nil)
	if turnstone.KindOf(err) != turnstone.KindUnavailable {
		t.Fatal(err)
	}
}

// TestMachineTurn runs real turns through the channel and a relay, the second on the first's state,
// and compares their receipts with those of the same turns without a network.
func TestMachineTurn(t *testing.T) {
	x, err := executor.Open(t.Context(), executor.Options{Dir: turntest.Home(t).Root})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = x.Close() }()
	n := newNode(t, x)
	turn := &remote.Turns{Dial: n.dial}
	far, near := "remote-"+n.client.Public.String()[:8], "local-"+n.client.Public.String()[:8]
	clean := strings.NewReplacer("+", "a", "/", "b")
	far, near = clean.Replace(far), clean.Replace(near)
	on := true
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "data"), []byte("41"), 0o600); err != nil {
		t.Fatal(err)
	}
	files := []document.Transfer{{Path: folder, Dest: "in"}, {Path: filepath.Join(folder, "data")}}
	for i, text := range []string{"```bash\nhead -c 8 /dev/urandom | od -An -tx1 | tee a\n```\n",
		"```bash\ncat a; date; cat in/data data\n```\n"} {
		doc := parse(t, text)
		var h heard
		got, err := turn.Run(t.Context(), remote.TurnRequest{
			Ticket: n.ticket("k_0000000"+string(rune('1'+i)), far), Document: doc, Add: files,
			Settings: wire.TurnSettings{Session: far, Deterministic: &on, Tier: "seeded", Seed: "7"}},
			&h)
		if turnstone.KindOf(err) == turnstone.KindUnavailable {
			t.Skip(err)
		}
		if err != nil || got.Result != turnstone.ResultPassed || h.out.Len() == 0 {
			t.Fatalf("turn %d: %+v %v", i+1, got, err)
		}
		seed := uint64(7)
		want, err := x.Run(t.Context(), executor.Request{Document: doc, Session: near,
			Deterministic: &on, Tier: "seeded", Seed: &seed, Add: files}, nil)
		if err != nil || want.FSHash != got.FSHash || want.Steps[0].Stdout != got.Steps[0].Stdout {
			t.Fatalf("turn %d: %s and %s, %q and %q: %v", i+1, got.FSHash, want.FSHash,
				got.Steps[0].Stdout, want.Steps[0].Stdout, err)
		}
		if _, _, signed := document.CutEvidence([]byte(got.Receipt)); !signed {
			t.Fatal("the receipt is not signed")
		}
	}
	for _, s := range []string{far, near} {
		if _, err := x.RemoveSession(t.Context(), s); err != nil {
			t.Error(err)
		}
	}
}

func settingsOf(session string) wire.TurnSettings { return wire.TurnSettings{Session: session} }
