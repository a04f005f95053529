package sandboxes

import (
	"os/exec"
	"testing"

	"turnstone.dev/turnstone"
)

// TestTransitions checks every state against every event.
func TestTransitions(t *testing.T) {
	states := []State{StateCreating, StateReady, StateRunning, StateStopped, StateFailed}
	events := []event{eventConfigured, eventStarted, eventIdle, eventStopRequested, eventTimeUp,
		eventCreateFailed,
		eventMachineDied, eventHolderDied}
	want := map[State]map[event]State{
		StateCreating: {eventConfigured: StateReady, eventCreateFailed: StateFailed,
			eventStopRequested: StateStopped, eventHolderDied: StateFailed},
		StateReady: {eventStarted: StateRunning, eventStopRequested: StateStopped,
			eventTimeUp:      StateStopped,
			eventMachineDied: StateFailed, eventHolderDied: StateFailed},
		StateRunning: {eventIdle: StateReady, eventStopRequested: StateStopped,
			eventTimeUp: StateStopped, eventMachineDied: StateFailed,
			eventHolderDied: StateFailed},
	}
	for _, s := range states {
		for _, e := range events {
			next, allowed := want[s][e]
			i := Info{State: s}
			err := i.apply(e, "why")
			switch {
			case allowed && (err != nil || i.State != next):
				t.Errorf("%s, %s: %s, %v", s, e, i.State, err)
			case !allowed && (turnstone.KindOf(err) != turnstone.KindInternal || err == nil ||
				i.State != s || i.Reason != ""):
				t.Errorf("%s, %s: %s, %v: want a refusal", s, e, i.State, err)
			case allowed && (i.Reason == "why") != next.Final():
				t.Errorf("%s, %s: reason %q", s, e, i.Reason)
			case allowed && i.Changed.IsZero():
				t.Errorf("%s, %s: no time", s, e)
			}
		}
	}
	if len(transitions) != len(states) {
		t.Errorf("%d states in the table", len(transitions))
	}
}

// TestProcess: a reused PID is another process.
func TestProcess(t *testing.T) {
	self, err := thisProcess()
	if err != nil || !self.alive() {
		t.Fatalf("%+v, %v", self, err)
	}
	other := self
	other.Start++
	if other.alive() || other.signal(9) != nil {
		t.Error("another's start time is taken for ours")
	}
	cmd := exec.Command("sleep", "100")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	start, err := startTime(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	p := Process{cmd.Process.Pid, start}
	if err := p.signal(9); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait()
	if p.alive() || p.signal(9) != nil {
		t.Error("the dead live")
	}
	for _, none := range []Process{{}, {1, 0}, {-1, 0}, {1 << 30, 5}} {
		if none.alive() {
			t.Errorf("%+v lives", none)
		}
	}
}

func TestParseStat(t *testing.T) {
	got, err := parseStat(
		[]byte("42 (a) b (c) S 1 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 1 2 3\n"))
	if err != nil || got != 98765 {
		t.Errorf("%d, %v", got, err)
	}
	for _, bad := range []string{"", "42", "42 (a) S 1",
		"42 (a) Z 1 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 1 2 3"} {
		if _, err := parseStat([]byte(bad)); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}

// FuzzInfo: for any state.json, reading succeeds or returns an error.
func FuzzInfo(f *testing.F) {
	f.Add([]byte(`{"id":"sb_000000000000000000","state":"ready","name":"x",` +
		`"holder":{"pid":1,"start":2}}`))
	f.Add([]byte(`{"id":"sb_000000000000000000","state":"ready","expires":null,` +
		`"shape":{"cpus":-1}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		i, err := parseInfo(b, "sb_000000000000000000")
		if err == nil && (i.ID != "sb_000000000000000000" || transitions[i.State] == nil) {
			t.Errorf("%+v", i)
		}
	})
}
