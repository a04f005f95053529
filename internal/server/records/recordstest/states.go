package recordstest

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/server/records"
)

// transitions is the table of docs/decisions/0018-roles.md for sandboxes, and the same for others:
// kind, state, event, next state. What is not here cannot happen.
const transitions = `
sandbox creating: configured = ready
sandbox ready: first command started = running
sandbox running: last command ended = ready
sandbox ready: stop requested = stopped
sandbox ready: time up = stopped
sandbox running: stop requested = stopped
sandbox running: time up = stopped
sandbox creating: create failed = failed
sandbox creating: machine died = failed
sandbox creating: holder died = failed
sandbox creating: the node lost it = failed
sandbox ready: create failed = failed
sandbox ready: machine died = failed
sandbox ready: holder died = failed
sandbox ready: the node lost it = failed
sandbox running: create failed = failed
sandbox running: machine died = failed
sandbox running: holder died = failed
sandbox running: the node lost it = failed
turn reserved: begun = running
turn running: finished = done
turn running: cancelled = done
turn running: the node lost it = done
turn reserved: cancelled = expired
turn reserved: time up = expired
turn reserved: the node lost it = expired
session kept: deleted = removed
session kept: the node lost it = removed
snapshot kept: deleted = removed
snapshot kept: the node lost it = removed
`

var kinds = []records.Kind{records.Sandbox, records.Turn, records.Session, records.Snapshot}

var states = []records.State{records.Creating, records.Ready, records.Running, records.Stopped,
	records.Failed, records.Reserved, records.Done, records.Expired, records.Kept,
	records.Removed}

var events = []records.Event{records.Configured, records.CommandStarted, records.CommandsEnded,
	records.StopRequested, records.TimeUp, records.CreateFailed, records.MachineDied,
	records.HolderDied, records.Begun, records.Finished, records.Cancelled, records.Deleted,
	records.Lost, "unknown"}

// table returns transitions by kind and state.
func table() map[string]map[records.Event]records.State {
	all := map[string]map[records.Event]records.State{}
	for line := range strings.SplitSeq(strings.TrimSpace(transitions), "\n") {
		from, rest, _ := strings.Cut(line, ": ")
		event, to, _ := strings.Cut(rest, " = ")
		if all[from] == nil {
			all[from] = map[records.Event]records.State{}
		}
		all[from][records.Event(event)] = records.State(to)
	}
	return all
}

// reach returns the shortest events to each state of a kind.
func reach(k records.Kind) map[records.State][]records.Event {
	list, all := []records.State{records.First(k)}, table()
	paths := map[records.State][]records.Event{records.First(k): {}}
	for len(list) > 0 {
		s := list[0]
		list = list[1:]
		for _, e := range events {
			to, ok := all[string(k)+" "+string(s)][e]
			if _, seen := paths[to]; ok && !seen {
				paths[to] = append(append([]records.Event{}, paths[s]...), e)
				list = append(list, to)
			}
		}
	}
	return paths
}

// testTransitions tries each event in each state of each kind.
func testTransitions(t *testing.T, f *fixture) {
	all := table()
	for _, k := range kinds {
		for s, path := range reach(k) {
			for _, e := range events {
				o := f.make(object(k))[0]
				for _, step := range path {
					o = f.change(o, records.Change{Event: step})
				}
				want, ok := all[string(k)+" "+string(s)][e]
				after, err := f.Change(t.Context(), o.Node, k, o.ID, records.Change{Event: e})
				if !ok {
					f.want(err, turnstone.KindInvalid)
					if got := f.get(o); !reflect.DeepEqual(got, o) {
						t.Errorf("a refused event changed %+v to %+v", o, got)
					}
					continue
				}
				if err != nil || after.State != want {
					t.Errorf("%s that is %s: %s leads to %s: %v; want %s", k, s, e, after.State,
						err, want)
				}
				if final := want.Final(); final != !after.Ended.IsZero() ||
					final != (after.Reason == string(e)) {
					t.Errorf("%s that is %s ended at %v, reason %q", k, want, after.Ended,
						after.Reason)
				}
			}
		}
	}
}

// testReports: a node's report is accepted if transitions lead to its state, and no other.
func testReports(t *testing.T, f *fixture) {
	all := table()
	var leads func(k records.Kind, from, to records.State, seen map[records.State]bool) bool
	leads = func(k records.Kind, from, to records.State, seen map[records.State]bool) bool {
		seen[from] = true
		for _, next := range all[string(k)+" "+string(from)] {
			if next == to || !seen[next] && leads(k, next, to, seen) {
				return true
			}
		}
		return from == to
	}
	for _, k := range kinds {
		for from, path := range reach(k) {
			for _, to := range states {
				o := f.make(object(k))[0]
				for _, step := range path {
					o = f.change(o, records.Change{Event: step})
				}
				after, err := f.Change(t.Context(), o.Node, k, o.ID, records.Change{State: to})
				if ok := leads(k, from, to, map[records.State]bool{}); ok != (err == nil) ||
					ok && after.State != to {
					t.Errorf("%s that is %s becomes %s: %v, want %v", k, from, to, err, ok)
				} else if !ok {
					f.want(err, turnstone.KindInvalid)
				}
			}
		}
	}
}

// testChanges: fields beside the state, the time of changes, and whose objects a node changes.
func testChanges(t *testing.T, f *fixture) {
	yes, no, name := true, false, "b"
	o := f.make(func() records.Object { o := object(records.Sandbox); o.Name = "a"; return o }())[0]
	_, err := f.Change(t.Context(), o.Node, o.Kind, o.ID, records.Change{Paused: &yes})
	f.want(err, turnstone.KindInvalid)
	f.Pass(time.Second)
	o = f.change(o, records.Change{Event: records.Configured, Detail: []byte("d")})
	if !o.Changed.Equal(f.Now()) || string(f.get(o).Detail) != "d" {
		t.Errorf("changed at %v, want %v: %+v", o.Changed, f.Now(), o)
	}
	expires := f.Now().Add(time.Hour)
	o = f.change(o, records.Change{Paused: &yes, Name: &name, Expires: &expires})
	if got := f.get(o); !got.Paused || got.Name != "b" || !got.Expires.Equal(expires) {
		t.Errorf("the change became %+v", got)
	}
	f.change(o, records.Change{Paused: &no})
	f.change(o, records.Change{Paused: &yes})
	f.Jump(-time.Hour)
	o = f.change(o, records.Change{Event: records.TimeUp, Reason: "its time was up"})
	if o.Paused || o.Reason != "its time was up" || o.Ended.Before(o.Created) {
		t.Errorf("the end is %+v", o)
	}
	f.change(o, records.Change{State: records.Stopped}) // a node says it again
	if got := f.get(o); got.Reason != "its time was up" {
		t.Errorf("the repeated end changed the reason to %q", got.Reason)
	}
	other := f.make(object(records.Sandbox))[0]
	for _, node := range []string{"m", ""} {
		_, err = f.Change(t.Context(), node, other.Kind, other.ID,
			records.Change{Event: records.Configured})
		f.want(err, turnstone.KindNotFound)
	}
	_, missing := f.Change(t.Context(), "n", records.Sandbox, "sb_none",
		records.Change{Event: records.Configured})
	if strings.Replace(err.Error(), other.ID, "sb_none", 1) != missing.Error() {
		t.Errorf("the errors tell objects of others: %v; %v", err, missing)
	}
	for _, c := range []records.Change{
		{Event: records.Configured, State: records.Ready}, {Reason: "a\nb"},
		{Detail: make([]byte, records.MaxDetail+1)},
	} {
		_, err := f.Change(t.Context(), "n", records.Sandbox, other.ID, c)
		if turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Errorf("%+v: %v", c.Event, err)
		}
	}
	// A turn's result.
	turn := f.make(object(records.Turn))[0]
	f.change(turn, records.Change{Event: records.Begun})
	f.change(turn, records.Change{Event: records.Finished, Result: "passed"})
	if got := f.get(turn); got.Result != "passed" || got.State != records.Done {
		t.Errorf("the turn is %+v", got)
	}
}
