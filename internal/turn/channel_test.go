package turn

import (
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/guest/agent"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/provision"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/sandbox"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/turn/place"
)

// A noisyMachine is a machine in which a process other than the agent writes to the agent's
// channel. The machine does not end with its channel.
type noisyMachine struct {
	host, guest net.Conn
	done        chan struct{}
	once        sync.Once
	silent      atomic.Bool // discards the agent's output
}

func (m *noisyMachine) ID() turnstone.SandboxID   { return "sb_noisy" }
func (m *noisyMachine) Agent() io.ReadWriteCloser { return m.host }
func (m *noisyMachine) Scratch() string           { return "scratch" }
func (m *noisyMachine) Done() <-chan struct{}     { return m.done }
func (m *noisyMachine) Err() error                { return nil }
func (m *noisyMachine) Close() error {
	m.once.Do(func() { _ = m.host.Close(); close(m.done) })
	return nil
}

// TestBrokenChannel checks that a turn ends at once if its sandbox writes foreign data to the
// agent's channel. The receipt names the step and the reason, and the machine ends.
func TestBrokenChannel(t *testing.T) {
	for name, noise := range map[string]string{
		"a frame without end":         "\x00\x00\x00\x00garbage garbage",
		"another agent's words":       "\x81\x02{}",
		"an answer nobody waits for":  string(linkData("\x81\x13" + `{"id":99,"result":1}`[:19])),
		"a frame of no known version": "hello, host, how are you?",
	} {
		t.Run(name, func(t *testing.T) {
			m, r, s, closeAll := runNoisy(t,
				"```bash name=a\necho begun; sleep 600\n```\n\n```bash\necho never\n```\n",
				func(m *noisyMachine) { _, _ = m.guest.Write([]byte(noise)) })
			result, err := r.runSteps(t.Context(), t.Context(), roomy, s)
			if result != turnstone.ResultError ||
				turnstone.KindOf(err) != turnstone.KindIntegrity ||
				!strings.Contains(err.Error(), "broke its channel") {
				t.Errorf("%s: %v", result, err)
			}
			first, second := r.steps.Result(r.doc.Steps[0]), r.steps.Result(r.doc.Steps[1])
			if got := first; got.Status != turnstone.StepError ||
				!strings.Contains(got.Note, "broke its channel") ||
				second.Status == turnstone.StepPassed {
				t.Errorf("%+v", []document.StepResult{first, second})
			}
			if strings.Contains(name, "nobody waits") {
				_ = s.Close() // only the connection was broken
			}
			<-m.done
			closeAll()
		})
	}
}

// TestSilentAgent checks that an agent that no longer confirms a step's end delays nothing. The
// machine ends.
func TestSilentAgent(t *testing.T) {
	m, r, s, closeAll := runNoisy(t,
		"```bash name=a timeout=1s\necho begun; sleep 600\n```\n\n```bash\necho never\n```\n",
		func(m *noisyMachine) { m.silent.Store(true) })
	result, err := r.runSteps(t.Context(), t.Context(), roomy, s)
	if result != turnstone.ResultTimedOut || err != nil || !s.Ended() {
		t.Errorf("%s: %v", result, err)
	}
	first, second := r.steps.Result(r.doc.Steps[0]), r.steps.Result(r.doc.Steps[1])
	if first.Status != turnstone.StepTimeout || second.Status == turnstone.StepPassed {
		t.Errorf("%+v", []document.StepResult{first, second})
	}
	if _, _, err := r.collect(t.Context(), s, 1); turnstone.KindOf(err) != turnstone.KindDead {
		t.Errorf("collect: %v", err)
	}
	<-m.done
	closeAll()
}

// roomy reports a disk with free space.
func roomy() error { return nil }

// runNoisy runs a turn with an agent in this process. It calls then at the first step's first
// output. closeAll waits for the agent's end.
func runNoisy(t *testing.T, text string, then func(*noisyMachine)) (m *noisyMachine, r *run,
	s *sandbox.Sandbox, closeAll func()) {
	t.Helper()
	m = &noisyMachine{done: make(chan struct{})}
	m.host, m.guest = net.Pipe()
	dir := t.TempDir()
	a, err := agent.New(agent.Options{RunDir: dir, Cwd: dir})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() { _ = a.Serve(context.Background(), silenced{m.guest, &m.silent}); close(served) }()
	x := testRunner(&statedir.Dir{Root: t.TempDir()})
	x.host.Launcher.KillGrace = time.Second
	if s, err = x.host.Launcher.Connect(m, &turnstone.Template{}); err != nil {
		t.Fatal(err)
	}
	doc := parse(t, text)
	r = &run{host: x.host, at: &place.Place{Base: provision.Base{Context: &repo.ContextStore{}}},
		plan: &plan.Plan{Cwd: dir, Timeout: time.Hour}, doc: doc,
		obs:   &speaking{begun: func() { then(m) }},
		clock: provision.NewStopwatch()}
	r.info = document.TurnInfo{ID: turnstone.NewTurnID(), Started: time.Now()}
	if r.folder, err = x.host.Repo.OpenTurnFolder(r.info.ID); err != nil {
		t.Fatal(err)
	}
	r.openSteps()
	return m, r, s, func() {
		<-served
		if err := a.Close(); err != nil {
			t.Error(err)
		}
		r.folder.Close()
	}
}

// silenced discards written data once silent is set.
type silenced struct {
	net.Conn
	silent *atomic.Bool
}

func (s silenced) Write(p []byte) (int, error) {
	if s.silent.Load() {
		return len(p), nil
	}
	return s.Conn.Write(p)
}

// linkData returns a frame of the link with data of its first stream.
func linkData(data string) []byte {
	return append([]byte{0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, byte(len(data))}, data...)
}

// A speaking observer calls begun at a step's first output.
type speaking struct {
	observer
	begun func()
	once  sync.Once
}

func (o *speaking) StepOutput(*document.Step, turnstone.Stream, []byte) {
	o.once.Do(func() { go o.begun() })
}
