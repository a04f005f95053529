package qemu

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/testsize"
	"turnstone.dev/turnstone/internal/turntest"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/wire"
)

// strictScript has what a machine that is not deterministic does differently each time: clocks,
// random numbers, process numbers, the order of directories, processes and threads that race, and many
// waits for a timer, each of which may end at a time of the host's.
const strictScript = `date +%s.%N; cat /proc/sys/kernel/random/boot_id /etc/machine-id /proc/uptime
hostname; od -An -tx1 -N16 /dev/urandom; echo $RANDOM $$
mkdir d; for i in $(seq 50); do : >d/$RANDOM; done; ls -U d | tr '\n' ' '
for i in 1 2 3 4; do (for j in 1 2 3; do echo $i; sleep 0.0$i; done) & done; wait
for i in 1 2 3; do (j=0; while [ $j -lt 500 ]; do j=$((j+1)); done; echo race $i) & done; wait
perl -e 'select(undef, undef, undef, 0.007) for 1..300'; stat -c %y d; sleep 3; date +%s.%N; cat /proc/interrupts | head -20; cat /proc/meminfo
`

// A strictRun is what one run of a deterministic machine left.
type strictRun struct {
	output       string
	seconds      float64
	memory, disk turnstone.Digest
}

// TestStrict runs the same script in deterministic machines, all but the first on a busy host, and in one
// with another seed. The host is busy because they run at the same time.
func TestStrict(t *testing.T) {
	h := turntest.Home(t)
	d := substrate.Determinism{Clock: turnstone.DefaultClock()}
	m := turntest.Deterministic(t, h, "base", d)
	m.Shape.Memory, m.Shape.Disk, m.Shape.Network = 512<<20, 1<<30, false
	first, err := runStrict(t, newSubstrate(t, h, nil), m, d)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%.1f s\n%s", first.seconds, first.output)
	var together sync.WaitGroup
	run := func(d substrate.Determinism, check func(strictRun)) {
		s := newSubstrate(t, h, nil)
		together.Go(func() {
			r, err := runStrict(t, s, m, d)
			if err != nil {
				t.Error(err)
				return
			}
			check(r)
		})
	}
	for range testsize.Of(1, 2) {
		run(d, func(again strictRun) {
			if again.output != first.output || again.memory != first.memory || again.disk != first.disk {
				t.Errorf("got %+v, at first %+v", again, first)
			}
		})
	}
	for range testsize.Of(0, 1) { // the corpus has a seed in its documents, too
		seeded := d
		seeded.Seed[0] = 1
		run(seeded, func(other strictRun) {
			if other.output == first.output || other.memory == first.memory {
				t.Errorf("another seed led to the same: %+v", other)
			}
		})
	}
	stop := keepBusy(runtime.NumCPU() - 2)
	defer stop()
	together.Wait()
}

// keepBusy gives n processors something else to do until stop is called.
func keepBusy(n int) (stop func()) {
	var stopped atomic.Bool
	var busy sync.WaitGroup
	for range n {
		busy.Go(func() {
			for !stopped.Load() {
			}
		})
	}
	return func() { stopped.Store(true); busy.Wait() }
}

func runStrict(t *testing.T, s *Substrate, m substrate.Machine,
	d substrate.Determinism) (r strictRun, err error) {
	configure := wire.SandboxConfigureParams{Time: d.Clock.Format(time.RFC3339Nano),
		Scratch: scratchSerial, Hostname: "turn", MachineID: strings.Repeat("1", 32)}
	seed := d.Derive("test")
	configure.Entropy = seed[:]
	step := wire.ShellExecuteParams{Name: "step", Spans: new(bool)}
	params := func(v any) json.RawMessage {
		b, jsonErr := json.Marshal(v)
		err = errors.Join(err, jsonErr)
		return b
	}
	d.Script = []substrate.Call{{Method: wire.MethodSandboxConfigure, Params: params(configure)},
		{Method: wire.MethodShellExecute, Params: params(step), Size: int64(len(strictScript)),
			Data: strings.NewReader(strictScript)},
		{Method: wire.MethodStateFreeze}}
	if err != nil {
		return r, err
	}
	m.Determinism = &d
	s.look = func(memory, scratch *os.File) (err error) {
		if r.memory, err = turnstone.DigestReader(memory); err == nil {
			r.disk, err = turnstone.DigestReader(scratch)
		}
		return err
	}
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	began := time.Now()
	vm, err := s.Restore(ctx, m)
	if err != nil {
		return r, fmt.Errorf("%w (%s)", err, turnstone.HintOf(err))
	}
	r.seconds = time.Since(began).Seconds()
	defer vm.Close()
	link, err := wire.NewLink(vm.Agent(), true)
	if err != nil {
		return r, err
	}
	stream, err := link.Open()
	if err != nil {
		return r, err
	}
	client := wire.NewClient(stream)
	defer func() { _, _, _ = vm.Close(), client.Close(), link.Close() }()
	if _, err := client.SandboxConfigure(ctx, &configure); err != nil {
		return r, err
	}
	var out bytes.Buffer
	end, err := client.Execute(ctx, step, strictScript, wire.Stdio{Out: &out, Err: &out}, nil)
	if err != nil || end.Exit.ExitCode != 0 {
		return r, fmt.Errorf("%+v, %v: %s", end, err, out.String())
	}
	if _, err := client.StateFreeze(ctx); err != nil {
		return r, err
	}
	r.output = out.String()
	return r, nil
}
