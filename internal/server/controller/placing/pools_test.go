package placing

import (
	"fmt"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
)

// sized gives a machine that names no size two CPUs and a GiB.
func sized(m *v1.Machine, _ string) turnstone.Machine {
	return machineOf(m).Over(turnstone.Machine{CPUs: 2, Memory: 1 << 30})
}

// register registers a node on which sandboxes of a kind wait.
func register(f *Fleet, name string, warm ...*v1.WarmKind) {
	f.Register(&v1.Node{Name: name, Warm: warm,
		Capacity: &v1.Machine{Cpus: 64, Memory: 1 << 40, Disk: 1 << 40}})
	f.Sync(name, true)
	f.Tick()
}

// given returns the shares of all nodes together.
func given(f *Fleet, nodes ...string) (sum int) {
	for _, n := range nodes {
		for _, s := range f.Shares(n) {
			sum += int(s.Min)
		}
	}
	return sum
}

func TestAsk(t *testing.T) {
	bound := 0
	f := New(Options{Lost: time.Hour, Bound: func(string) int { return bound }})
	register(f, "a")
	register(f, "b")
	ask := func(tenant, name string, count int) {
		t.Helper()
		if err := f.ask(name, Pool{Tenant: tenant, Template: "base", Min: count, Max: count}, time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	want := func(what string, n int) {
		t.Helper()
		if got := given(f, "a", "b"); got != n {
			t.Errorf("%s: the nodes got %d of %d", what, got, n)
		}
	}
	ask("acme", "one", 4)
	want("at once", 4)
	if a := f.Shares("a"); len(a) != 1 || a[0].Min != 2 || !a[0].Build || a[0].Template != "base" {
		t.Errorf("a got %v", a)
	}
	ask("acme", "one", 4)
	ask("acme", "one", 2)
	want("less", 2)
	ask("acme", "two", 3)
	want("two pools of a kind", 5)
	if a, b := f.Shares("a"), f.Shares("b"); len(a) != 1 || len(b) != 1 {
		t.Errorf("the shares of one kind are %v and %v", a, b)
	}
	bound = 1
	f.Tick()
	if n := given(f, "a", "b"); n > 1 {
		t.Errorf("the tenant's bound of 1 gives %d", n)
	}
	bound = 0
	f.Tick()
	want("without the bound", 5)
	ask("acme", "two", 0)
	want("one has ended", 2)
	f.Skip(50 * time.Second)
	ask("acme", "one", 2) // again
	f.Skip(50 * time.Second)
	f.Tick()
	want("set again", 2)
	f.Skip(time.Minute)
	f.Tick()
	want("all are over", 0)
	for i := range maxAskedEach {
		ask("acme", fmt.Sprint("p", i), 1)
	}
	if err := f.ask("more", Pool{Tenant: "acme", Template: "base", Min: 1, Max: 1}, time.Minute); turnstone.KindOf(err) != turnstone.KindExhausted {
		t.Errorf("one pool too many: %v", err)
	}
	ask("other", "one", 1)
}

// TestAskedState: what is said of a pool is what the nodes have reported of its kind.
func TestAskedState(t *testing.T) {
	f := New(Options{Lost: time.Hour})
	warm := func(ready, making uint32) *v1.WarmKind {
		return &v1.WarmKind{Tenant: "acme", Template: "base", Machine: &v1.Machine{Cpus: 2, Memory: 1 << 30},
			Ready: ready, Making: making}
	}
	register(f, "a", warm(3, 1), &v1.WarmKind{Tenant: "other", Template: "base", Ready: 9})
	register(f, "b", warm(2, 0))
	for name, n := range map[string]int{"one": 4, "two": 3} {
		if err := f.ask(name, Pool{Tenant: "acme", Template: "base", Min: n, Max: n}, time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string][3]uint32{"one": {4, 4, 0}, "two": {3, 1, 1}, "three": {}} {
		s := f.state("acme", name, sized)
		if got := [3]uint32{s.Target, s.Ready, s.Making}; got != want {
			t.Errorf("%s has target, ready and making %v, not %v", name, got, want)
		}
	}
	if s := f.state("other", "one", sized); s.Ready != 0 {
		t.Errorf("another tenant's pool has %v", s)
	}
	f.Skip(2 * time.Hour)
	f.Tick()
	if s := f.state("acme", "one", sized); s.Ready != 0 || s.Target != 0 {
		t.Errorf("without nodes a pool has %v", s)
	}
}
