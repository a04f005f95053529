package gvisor

import (
	"bytes"
	"context"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"turnstone.dev/turnstone/internal/testsize"
	"turnstone.dev/turnstone/internal/turntest"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/substrate/substratetest"
	"turnstone.dev/turnstone/wire"
)

// TestDeterministic: the same seed and clock give the same bytes, also on a busy host.
func TestDeterministic(t *testing.T) {
	h := turntest.Home(t)
	substratetest.Deterministic(t, newSubstrate(t, h),
		substratetest.Config{Machine: testMachine(t, h)}, func() func() {
			var stop atomic.Bool
			for range runtime.NumCPU() {
				go busy(&stop)
			}
			return func() { stop.Store(true) }
		})
}

// busy uses a CPU until stop is set: all of the time in a full run, and otherwise every other moment, so that the
// sandbox is interrupted as often and does not wait for the CPU most of the time.
func busy(stop *atomic.Bool) {
	const moment = 2 * time.Millisecond
	for began := time.Now(); !stop.Load(); {
		if !testsize.Full() && time.Since(began) >= moment {
			time.Sleep(moment)
			began = time.Now()
		}
	}
}

// TestDeterministicDoor: a step cannot make its sandbox deterministic, and cannot change the seed of
// one that is.
func TestDeterministicDoor(t *testing.T) {
	h := turntest.Home(t)
	s, m := newSubstrate(t, h), testMachine(t, h)
	for _, m.Determinism = range []*substrate.Determinism{nil, {Clock: time.Unix(1767225600, 0)}} {
		_, client := substratetest.Clone(t, s, m, nil)
		got, _ := substratetest.Shell(t, client,
			`perl -e '$a = "x" x 40; print syscall(157, 0x5475726e, $a), " ", $!'`)
		if got != "-1 Invalid argument" {
			t.Errorf("deterministic %t: prctl returned %q", m.Determinism != nil, got)
		}
	}
}

// TestDeterministicShownTime: a program of a deterministic sandbox finds the virtual time in its
// memory, read-only; in other sandboxes the option is unknown.
func TestDeterministicShownTime(t *testing.T) {
	h := turntest.Home(t)
	s, m := newSubstrate(t, h), testMachine(t, h)
	_, client := substratetest.Clone(t, s, m, nil)
	if got, _ := substratetest.Shell(t, client,
		`perl -e 'print syscall(157, 0x54757270), " ", $!'`); got != "-1 Invalid argument" {
		t.Errorf("ordinary: prctl returned %q", got)
	}
	m.Determinism = &substrate.Determinism{Clock: time.Unix(1767225600, 0)}
	_, client = substratetest.Clone(t, s, m, nil)
	if got, exit := substratetest.Shell(t, client, `perl -e '
		my $at = syscall(157, 0x54757270);
		sub shown { unpack("Q", unpack("P8", pack("Q", $at))) }
		sub asked { my $b = "x" x 16; syscall(228, 1, $b); my ($s, $ns) = unpack("QQ", $b);
			$s * 1e9 + $ns }
		my $first = asked(); my $now = shown(); my $next = asked();
		print "$first $now $next" unless $first <= $now && $now <= $next && $next - $first < 1e6;
		select(undef, undef, undef, 3600);
		print "no hour later" unless shown() - $now >= 3600e9;
		open(my $m, "+<", "/proc/self/mem") or exit;
		sysseek($m, $at, 0); print "written" if syswrite($m, "x" x 8);
		print $now == shown() ? "stands still" : ""'`); got != "" || exit.ExitCode != 0 {
		t.Errorf("deterministic: %q, exit code %d", got, exit.ExitCode)
	}
}

// TestDeterministicRestless: a process that an earlier step left behind, and that never waits, does
// not keep the next step from sleeping, and the clock is the same each time.
func TestDeterministicRestless(t *testing.T) {
	h := turntest.Home(t)
	s, m := newSubstrate(t, h), testMachine(t, h)
	m.Determinism = &substrate.Determinism{Clock: time.Unix(1767225600, 0)}
	for name, script := range map[string]string{
		"output":   "yes >/proc/self/fd/1 &",
		"calls":    "yes >/dev/null &",
		"pipe":     "yes | cat >/dev/null &",
		"programs": "while :; do /bin/true; done &",
		"computes": "while :; do :; done &",
	} {
		t.Run(name, func(t *testing.T) {
			if name != "output" && name != "computes" && !testsize.Full() {
				t.Skip("a full run has all of them")
			}
			first := restless(t, s, m, script)
			if again := restless(t, s, m, script); again != first {
				t.Errorf("first: %.200s\nagain: %.200s", first, again)
			}
			if n := strings.Count(first, "\n"); n != 2 {
				t.Errorf("%d lines: %.200s", n, first)
			}
		})
	}
}

// restless runs script in a new sandbox, and returns the output of a step after it, which sleeps.
func restless(t *testing.T, s *Substrate, m substrate.Machine, script string) string {
	t.Helper()
	vm, client := substratetest.Clone(t, s, m, nil)
	defer vm.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	var out bytes.Buffer
	for _, step := range []string{script, "date +%s.%N; sleep 1; date +%s.%N"} {
		out.Reset()
		if _, err := client.Execute(ctx, wire.ShellExecuteParams{}, step, wire.Stdio{Out: &out},
			nil); err != nil {
			t.Fatalf("%s: %v", step, err)
		}
	}
	return out.String()
}
