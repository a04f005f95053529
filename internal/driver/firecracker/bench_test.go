package firecracker

import (
	"context"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/host"
	"turnstone.dev/turnstone/internal/turntest"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/substrate/substratetest"
	"turnstone.dev/turnstone/wire"
)

// started returns the installed Firecracker, and a machine for it; it skips the test if there is
// none or if no guest starts.
func started(t testing.TB) (*Substrate, substrate.Machine) {
	t.Helper()
	h := turntest.Home(t)
	missing := t.Skipf
	if turntest.UnderKVM() {
		missing = t.Fatalf
	}
	if _, _, err := Find(t.Context(), h, Options{}); err != nil {
		missing("%v (%s)", err, turnstone.HintOf(err))
	}
	m := turntest.Machine(t, h, "base")
	s, err := New(t.Context(), h, Options{Probe: &m, Progress: func(what string) { t.Log(what) }})
	if err != nil {
		missing("%v (%s)", err, turnstone.HintOf(err))
	}
	return s, m
}

// ran returns a clone that has run a script, without its connection.
func ran(b *testing.B, s *Substrate, m substrate.Machine, script string) *machine {
	b.Helper()
	vm, err := s.Restore(b.Context(), m)
	check(b, err)
	client, link, err := substratetest.Configure(b.Context(), vm, m, nil)
	check(b, err)
	_, err = client.Start(b.Context(),
		wire.ProcessStartParams{Argv: []string{"bash", "-c", script}}, wire.Stdio{})
	check(b, err)
	_, _ = client.Close(), link.Close()
	return vm.(*machine)
}

// clones measures restore, configuration, one script and the end of a clone.
func clones(b *testing.B, s *Substrate, m substrate.Machine, script string) {
	b.ResetTimer()
	for range b.N {
		check(b, ran(b, s, m, script).Close())
	}
}

// BenchmarkStart measures a turn's start: restore, configure, one command, end.
func BenchmarkStart(b *testing.B) {
	s, m := started(b)
	clones(b, s, m, "true")
}

// BenchmarkWall is BenchmarkStart behind each wall.
func BenchmarkWall(b *testing.B) {
	s, m := started(b)
	for _, w := range []host.Wall{byJailer, jailed, noWall} {
		if w == byJailer && s.jailer == "" || w == jailed && s.wall.Wall == noWall {
			continue
		}
		s.wall.Wall = w
		b.Run(string(w), func(b *testing.B) { clones(b, s, m, "true") })
	}
}

// BenchmarkCommands measures a hundred processes in a clone, and so the cost of their pages.
func BenchmarkCommands(b *testing.B) {
	s, m := started(b)
	clones(b, s, m, "for i in {1..100}; do /bin/true; done")
}

// BenchmarkSnapshot saves a clone that has run some commands: it measures the total time, and how
// long its CPUs are paused.
func BenchmarkSnapshot(b *testing.B) {
	s, m := started(b)
	if err := s.Abilities().Live; err != nil {
		b.Skip(err)
	}
	for name, holes := range map[string]func() bool{"dirty pages": s.holes,
		"all memory": func() bool { return false }} {
		b.Run(name, func(b *testing.B) {
			var still time.Duration
			for range b.N {
				b.StopTimer()
				vm := ran(b, s, m, "for i in {1..20}; do /bin/true; done; head -c 8M "+
					"/dev/urandom > /dev/shm/x")
				vm.memory.holes = holes
				b.StartTimer()
				check(b, vm.Snapshot(context.Background(), b.TempDir()+"/vm"))
				b.StopTimer()
				still += vm.stood
				_ = vm.Close()
			}
			b.ReportMetric(float64(still.Milliseconds())/float64(b.N), "still-ms/op")
		})
	}
}
