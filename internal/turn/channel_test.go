package turn

import (
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
	"turnstone.dev/turnstone/internal/sandboxtest"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/turn/place"
)

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
			m, r, s := runNoisy(t, new(atomic.Bool),
				"```bash name=a\necho begun; sleep 600\n```\n\n```bash\necho never\n```\n",
				func(m *sandboxtest.Guest) { _, _ = m.Far.Write([]byte(noise)) })
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
			<-m.Done()
		})
	}
}

// TestSilentAgent checks that an agent that no longer confirms a step's end delays nothing. The
// machine ends.
func TestSilentAgent(t *testing.T) {
	t.Parallel()
	silent := new(atomic.Bool)
	m, r, s := runNoisy(t, silent,
		"```bash name=a timeout=6s\necho begun; sleep 600\n```\n\n```bash\necho never\n```\n",
		func(*sandboxtest.Guest) { silent.Store(true) })
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
	<-m.Done()
}

// roomy reports a disk with free space.
func roomy() error { return nil }

// runNoisy runs a turn with an agent in this process, whose output is discarded once silent is set.
// It calls then at the first step's first output.
func runNoisy(t *testing.T, silent *atomic.Bool, text string, then func(*sandboxtest.Guest)) (
	m *sandboxtest.Guest, r *run, s *sandbox.Sandbox) {
	t.Helper()
	dir := t.TempDir()
	m, err := sandboxtest.Boot(agent.Options{RunDir: dir, Cwd: dir},
		func(c net.Conn) io.ReadWriteCloser { return silenced{c, silent} })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	x := testRunner(&statedir.Dir{Root: t.TempDir()})
	x.host.Launcher.KillGrace = time.Second
	if s, err = x.host.Launcher.Connect(m, &turnstone.Template{}); err != nil {
		t.Fatal(err)
	}
	doc := parse(t, text)
	r = &run{host: x.host, at: &place.Place{Base: provision.Base{Context: &repo.ContextStore{}}},
		plan: &plan.Plan{Cwd: dir, Timeout: time.Hour}, doc: doc,
		obs: &speaking{begun: func() { then(m) }}, clock: provision.NewStopwatch()}
	r.info = document.TurnInfo{ID: turnstone.NewTurnID(), Started: time.Now()}
	if r.folder, err = x.host.Repo.OpenTurnFolder(r.info.ID); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.folder.Close)
	r.openSteps()
	return m, r, s
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
