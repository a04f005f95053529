package sandboxes_test

import (
	"context"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/sandboxes"
	"turnstone.dev/turnstone/substrate"
)

// A sessionMachine is a machine whose commits are lines of a file, which FAKE_TURNS names.
type sessionMachine struct {
	*realAgent
	turns string
}

// openSession makes the machine of a sandbox of a session with one turn.
func openSession(spec sandboxes.Spec) (sandboxes.Machine, sandboxes.Details, error) {
	r, err := openReal()
	return &sessionMachine{r, os.Getenv("FAKE_TURNS")}, sandboxes.Details{Image: "inherited",
		Session: &sandboxes.SessionInfo{ID: "s_1", Name: spec.Session, Branch: "main", Begun: "t_1",
			Turn: "t_1", Number: 1}}, err
}

func (m *sessionMachine) Pause(context.Context) (string, error)  { return "upper", nil }
func (m *sessionMachine) Resume(context.Context) error           { return nil }
func (m *sessionMachine) Snapshot(context.Context, string) error { return nil }
func (m *sessionMachine) Disk() (*os.File, error)                { return nil, nil }
func (m *sessionMachine) Keep(context.Context, string) (substrate.Packed, error) {
	return substrate.Packed{}, nil
}

// Commit implements sandboxes.Committer. It fails while a file says so, except at the end.
func (m *sessionMachine) Commit(_ context.Context, w sandboxes.Work) (*turnstone.TurnReport,
	sandboxes.SessionInfo, error) {
	now := w.Session
	if _, err := os.Stat(m.turns + ".broken"); err == nil {
		return nil, now, turnstone.Errorf("test", turnstone.KindExhausted, "disk", "is full").
			WithHint("free some space")
	}
	if len(w.Commands) == 0 {
		return nil, now, nil
	}
	f, err := os.OpenFile(m.turns, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, now, err
	}
	defer f.Close()
	b, err := json.Marshal(w)
	if err != nil {
		return nil, now, err
	}
	if _, err := f.Write(append(b, '\n')); err != nil {
		return nil, now, err
	}
	now.Turn, now.Number = "t_2", now.Number+1
	return &turnstone.TurnReport{Number: now.Number, Session: now.Name, Branch: "main"}, now, nil
}

// turns returns the work of the commits so far.
func turns(t *testing.T) (all []sandboxes.Work) {
	t.Helper()
	b, err := os.ReadFile(os.Getenv("FAKE_TURNS"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		var w sandboxes.Work
		if err := json.Unmarshal([]byte(line), &w); err != nil {
			t.Fatal(err)
		}
		all = append(all, w)
	}
	return all
}

// createSession creates a sandbox of a session.
func createSession(t *testing.T, change func(*sandboxes.Spec)) (*sandboxes.Store, sandboxes.Info) {
	t.Helper()
	t.Setenv("FAKE_TURNS", t.TempDir()+"/turns")
	s, sp := newStore(t), spec("session")
	sp.Session = "research"
	if change != nil {
		change(&sp)
	}
	i := create(t, s, sp)
	if i.Session == nil || i.Session.Name != "research" || i.Session.Number != 1 {
		t.Fatalf("%+v", i.Session)
	}
	return s, i
}

func perform(t *testing.T, s *sandboxes.Store, id turnstone.SandboxID, argv ...string) {
	t.Helper()
	if _, err := s.Exec(t.Context(), id, sandboxes.Command{Argv: argv}); err != nil {
		t.Fatal(err)
	}
}

// ran returns the arguments of a turn's commands.
func ran(w sandboxes.Work) (all []string) {
	for i := range w.Commands {
		all = append(all, strings.Join(w.Commands[i].Argv, " "))
	}
	return all
}

// TestCommit checks what turns have: each command once, those that nobody waited for too.
func TestCommit(t *testing.T) {
	s, i := createSession(t, nil)
	if rep, err := s.Commit(t.Context(), i.ID); rep != nil || err != nil {
		t.Errorf("nothing was done: %+v, %v", rep, err)
	}
	perform(t, s, i.ID, "echo", "one")
	if _, err := s.StartDetached(t.Context(), i.ID,
		sandboxes.Command{Argv: []string{"sleep", "1000"}}); err != nil {
		t.Fatal(err)
	}
	rep, err := s.Commit(t.Context(), i.ID)
	if err != nil || rep.Number != 2 {
		t.Fatalf("%+v, %v", rep, err)
	}
	perform(t, s, i.ID, "echo", "two")
	if err := s.Stop(t.Context(), i.ID); err != nil {
		t.Fatal(err)
	}
	all := turns(t)
	if len(all) != 2 || !slices.Equal(ran(all[0]), []string{"echo one", "sleep 1000"}) ||
		!slices.Equal(ran(all[1]), []string{"echo two"}) || all[1].Session.Number != 2 {
		t.Fatalf("%+v", all)
	}
	if c := all[0].Commands[1]; c.Ended || c.Exit != nil {
		t.Errorf("a command that runs has ended: %+v", c)
	}
	if c := all[0].Commands[0]; !c.Ended || c.Exit == nil || c.Stdout.Size != 4 {
		t.Errorf("%+v", c)
	}
	now, err := s.Get(i.ID)
	if err != nil || now.State != sandboxes.StateStopped || now.Session.Number != 3 {
		t.Errorf("%+v, %v", now, err)
	}
}

// TestCommitFails checks that a sandbox whose turn cannot be kept stays, and can be discarded.
func TestCommitFails(t *testing.T) {
	s, i := createSession(t, nil)
	perform(t, s, i.ID, "true")
	broken := os.Getenv("FAKE_TURNS") + ".broken"
	if err := os.WriteFile(broken, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Commit(t.Context(), i.ID); turnstone.KindOf(err) != turnstone.KindExhausted {
		t.Errorf("%v", err)
	}
	for _, end := range []func(context.Context, turnstone.SandboxID) error{s.Stop, s.Remove} {
		err := end(t.Context(), i.ID)
		if turnstone.KindOf(err) != turnstone.KindExhausted ||
			!strings.Contains(err.Error(), "still runs") ||
			!strings.Contains(turnstone.HintOf(err), "--discard") {
			t.Errorf("%v (%s)", err, turnstone.HintOf(err))
		}
	}
	perform(t, s, i.ID, "echo", "still")
	if err := os.Remove(broken); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Commit(t.Context(), i.ID); err != nil {
		t.Fatal(err)
	}
	if all := turns(t); len(all) != 1 || !slices.Equal(ran(all[0]), []string{"true", "echo still"}) {
		t.Errorf("%+v", all)
	}
	perform(t, s, i.ID, "echo", "lost")
	if err := s.Discard(t.Context(), i.ID); err != nil {
		t.Fatal(err)
	}
	if all := turns(t); len(all) != 1 {
		t.Errorf("%+v", all)
	}
}

// TestCommitAtEnd checks the ends that no client asks for.
func TestCommitAtEnd(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, s *sandboxes.Store, i sandboxes.Info){
		"time up": func(t *testing.T, s *sandboxes.Store, i sandboxes.Info) {
			if err := control(t, s, i.ID).SetTTL(t.Context(), time.Millisecond); err != nil {
				t.Fatal(err)
			}
		},
		"shutdown": func(t *testing.T, _ *sandboxes.Store, i sandboxes.Info) {
			signalHolder(t, i, syscall.SIGTERM)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, i := createSession(t, nil)
			perform(t, s, i.ID, "true")
			end(t, s, i)
			got := await(t, s, i.ID, sandboxes.StateStopped)
			if !strings.HasSuffix(got.Reason, "; turn 2 of session research keeps it") ||
				len(turns(t)) != 1 {
				t.Errorf("%q, %d turns", got.Reason, len(turns(t)))
			}
		})
	}
}

func signalHolder(t *testing.T, i sandboxes.Info, sig syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(i.Holder.PID, sig); err != nil {
		t.Fatal(err)
	}
}

// TestCrashKeepsTheHead checks what a killed holder leaves.
func TestCrashKeepsTheHead(t *testing.T) {
	s, i := createSession(t, nil)
	perform(t, s, i.ID, "true")
	signalHolder(t, i, syscall.SIGKILL)
	got := await(t, s, i.ID, sandboxes.StateFailed)
	if !strings.Contains(got.Reason, "session research has nothing of it since turn 1") ||
		len(turns(t)) != 0 {
		t.Errorf("%q, %d turns", got.Reason, len(turns(t)))
	}
	if err := s.Remove(t.Context(), i.ID); err != nil {
		t.Error(err)
	}
}

// TestSecretsOfSessions checks that secrets of the sandbox and of commands are in no file of the
// sandbox, that its work names them, and that it is not forked.
func TestSecretsOfSessions(t *testing.T) {
	const one, two = "sesame-open-4711", "abracadabra-0815"
	s, i := createSession(t, func(sp *sandboxes.Spec) { sp.Secrets = []string{"ONE=" + one} })
	_, err := s.Exec(t.Context(), i.ID, sandboxes.Command{Secrets: []string{"TWO=" + two},
		Argv:  []string{"sh", "-c", "echo $TWO " + one + "; cat"},
		Stdin: strings.NewReader("in: " + two)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Commit(t.Context(), i.ID); err != nil {
		t.Fatal(err)
	}
	w := turns(t)[0]
	if !slices.Equal(w.Secrets, []string{"ONE=" + one, "TWO=" + two}) {
		t.Errorf("%q", w.Secrets)
	}
	b, err := json.Marshal(w.Commands)
	if err != nil || strings.Contains(string(b), one) || strings.Contains(string(b), two) ||
		!slices.Equal(w.Commands[0].Secrets, []string{"TWO"}) {
		t.Errorf("%s, %v", b, err)
	}
	_, err = s.Fork(t.Context(), i.ID, sandboxes.Fork{Count: 1, Secrets: true}, nil)
	if turnstone.KindOf(err) != turnstone.KindInvalid || turnstone.HintOf(err) == "" {
		t.Errorf("%v", err)
	}
	sp := spec("session")
	sp.Session, sp.Secrets = "research", []string{"SHORT=x"}
	if _, err := s.Create(t.Context(), sp, nil); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Errorf("%v", err)
	}
}

// TestPlainSandboxesHaveNoTurns checks Commit of a sandbox without a session.
func TestPlainSandboxesHaveNoTurns(t *testing.T) {
	s := newStore(t)
	i := create(t, s, spec("fine"))
	if _, err := s.Commit(t.Context(), i.ID); turnstone.KindOf(err) != turnstone.KindInvalid ||
		turnstone.HintOf(err) == "" {
		t.Errorf("%v", err)
	}
	for _, sp := range []sandboxes.Spec{{Branch: "main"}, {Session: "s", On: "t_1"},
		{Session: "s", From: "/x"}, {Belongs: &sandboxes.SessionInfo{}}} {
		sp.Shape = turnstone.DefaultShape()
		if err := sp.Check(); turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Errorf("%+v: %v", sp, err)
		}
	}
}
