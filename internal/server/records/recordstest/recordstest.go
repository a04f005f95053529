// Package recordstest has the suite that every implementation of records.Store passes.
package recordstest

import (
	"sync"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/server/records"
)

// A Clock is the time of a store under test.
type Clock struct {
	mu      sync.Mutex
	now     time.Time
	elapsed time.Duration
}

// NewClock returns a clock at a fixed time.
func NewClock() *Clock {
	return &Clock{now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}
}

// Now is the wall clock.
func (c *Clock) Now() time.Time { c.mu.Lock(); defer c.mu.Unlock(); return c.now }

// Elapsed is the clock that never jumps.
func (c *Clock) Elapsed() time.Duration { c.mu.Lock(); defer c.mu.Unlock(); return c.elapsed }

// Pass lets time pass.
func (c *Clock) Pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now, c.elapsed = c.now.Add(d), c.elapsed+d
}

// Jump sets the wall clock forward or back.
func (c *Clock) Jump(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// An Open opens an empty store with a clock, objects and tokens that are kept for 7 days after
// their end, and usage for 400 days. The test closes it.
type Open func(t testing.TB, c *Clock) records.Store

// Run runs the suite.
func Run(t *testing.T, open Open) {
	for name, test := range map[string]func(*testing.T, *fixture){
		"Transitions":    testTransitions,
		"Reports":        testReports,
		"Changes":        testChanges,
		"Keys":           testKeys,
		"KeyLife":        testKeyLife,
		"KeyRaces":       testKeyRaces,
		"Concurrent":     testConcurrent,
		"Atomic":         testAtomic,
		"BadObjects":     testBadObjects,
		"Tenants":        testTenants,
		"Pages":          testPages,
		"Filters":        testFilters,
		"Reconcile":      testReconcile,
		"Names":          testNames,
		"Used":           testUsed,
		"Returns":        testReturns,
		"Renames":        testRenames,
		"TokensOfAll":    testTokensOfAll,
		"Tokens":         testTokens,
		"Revocations":    testRevocations,
		"Nodes":          testNodes,
		"Usage":          testUsage,
		"Prune":          testPrune,
		"GoneNode":       testGoneNode,
		"ReadsAndWrites": testReadsAndWrites,
	} {
		t.Run(name, func(t *testing.T) { test(t, newFixture(t, open)) })
	}
	t.Run("Model", func(t *testing.T) { testModel(t, open) })
}

// A fixture is an empty store.
type fixture struct {
	testing.TB
	records.Store
	*Clock
}

func newFixture(t testing.TB, open Open) *fixture {
	c := NewClock()
	s := open(t, c)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return &fixture{t, s, c}
}

// object returns a new object of tenant "a" on node "n".
func object(k records.Kind) records.Object {
	id := string(turnstone.NewSandboxID())
	if k == records.Session {
		id = string(turnstone.NewSessionID())
	}
	return records.Object{Kind: k, ID: id, Tenant: "a", Owner: "me", Node: "n"}
}

// make stores objects without a key.
func (f *fixture) make(objects ...records.Object) []records.Object {
	f.Helper()
	made, old, err := f.Create(f.Context(), nil, objects...)
	if err != nil || old || len(made) != len(objects) {
		f.Fatalf("made %d of %d objects, old %v: %v", len(made), len(objects), old, err)
	}
	return made
}

// change applies a change that must succeed.
func (f *fixture) change(o records.Object, c records.Change) records.Object {
	f.Helper()
	after, err := f.Change(f.Context(), o.Node, o.Kind, o.ID, c)
	if err != nil {
		f.Fatal(err)
	}
	if got := f.get(o); got.State != after.State || got.Paused != after.Paused {
		f.Fatalf("Change returned %+v, and stored %+v", after, got)
	}
	return after
}

// end brings an object to an end.
func (f *fixture) end(o records.Object) records.Object {
	f.Helper()
	event := map[records.Kind]records.Event{records.Sandbox: records.MachineDied,
		records.Turn: records.Cancelled}[o.Kind]
	if event == "" {
		event = records.Deleted
	}
	return f.change(o, records.Change{Event: event})
}

// get reads an object that must exist.
func (f *fixture) get(o records.Object) records.Object {
	f.Helper()
	got, err := f.Object(f.Context(), o.Tenant, o.Kind, o.ID)
	if err != nil {
		f.Fatal(err)
	}
	return got
}

// want checks the kind of an error, and that it has a hint.
func (f *fixture) want(err error, kind turnstone.Kind) {
	f.Helper()
	if err == nil || turnstone.KindOf(err) != kind || turnstone.HintOf(err) == "" {
		f.Errorf("the error is %v, kind %s, hint %q; want kind %s and a hint", err,
			turnstone.KindOf(err), turnstone.HintOf(err), kind)
	}
}

// ids returns the IDs of objects.
func ids(list []records.Object) []string {
	all := []string{}
	for _, o := range list {
		all = append(all, o.ID)
	}
	return all
}
