package substratetest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"strconv"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone/internal/testsize"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/wire"
)

// deterministicScripts are steps whose output is the same in each deterministic machine with the
// same seed and clock. They run one after another.
var deterministicScripts = []string{
	// random numbers
	`head -c 16 /dev/urandom | od -An -tx1; echo $RANDOM $RANDOM $SRANDOM
	 cat /proc/sys/kernel/random/uuid /proc/sys/kernel/random/boot_id /etc/machine-id; mktemp -u`,
	// clocks and times of files
	`date +%s.%N; date +%F; touch /tmp/f; stat -c '%x %y %z %w %i' /tmp/f; sleep 3600; date +%s.%N
	 cat /proc/uptime; TIMEFORMAT=%R,%U,%S; time sleep 2; echo $SECONDS $EPOCHREALTIME`,
	// numbers of processes, files and memory
	`echo $$ $BASHPID $(echo $BASHPID) $PPID; sleep 1 & echo $!; wait; ls -i /tmp /etc | head -40
	 cat /proc/self/stat /proc/self/statm; cat /proc/self/maps; readlink /proc/self/ns/pid`,
	// the machine
	`hostname; uname -a; nproc; cat /proc/stat | head -3; cat /proc/loadavg /proc/meminfo
	 cat /proc/cpuinfo; cat /proc/mounts; id; env; ulimit -a; df /; free`,
	// processes at the same time
	`for i in 1 2 3 4 5 6 7 8; do (for j in 1 2 3 4 5; do echo $i $j; done) & done; wait
	 seq 1 ` + strconv.Itoa(testsize.Of(40, 200)) + ` | xargs -P 4 -n 1 sh -c 'echo $0 $$'
	 for i in 3 1 2; do (sleep 0.$i; echo $i; date +%N) & done; wait`,
	`cat /proc/filesystems; for i in 1 2 3 4 5; do (exit $i) & done; sleep 1
	 for i in 1 2 3 4 5; do wait -n -p pid; echo $? $pid; done`,
	`yes | head -c 3000000 | md5sum; seq 1 60000 | sort -R | md5sum
	 (yes a & yes b & sleep 0.02; kill %1 %2) 2>/dev/null | head -c 1000000 | md5sum`,
	// an early end, timeouts and signals
	`timeout 1 sleep 10; echo $?; (sleep 5; echo late) & (trap 'echo got; exit' TERM; while :; do
	 sleep 0.1; done) & sleep 0.35; kill %2; wait %2; date +%N; echo done`,
	// a process in the background does not run on between steps
	`(while :; do date +%s.%N >>/tmp/log; sleep 0.5; done) & sleep 2; date +%N`,
	`wc -l /tmp/log; sleep 3; md5sum </tmp/log; kill %1 2>/dev/null; pkill -f nothing; echo $?`,
	`command -v python3 >/dev/null || exit 0
	 python3 -c 'import os, random, time, uuid, threading, queue, tempfile
print(os.urandom(8).hex(), random.random(), uuid.uuid4(), uuid.uuid1(), hash("x"), id(object()))
print({"a", "b", "c", "d"}, [object() for _ in range(3)], time.time(), time.monotonic())
time.sleep(1.5); print(time.time(), time.process_time(), tempfile.mktemp())
q = queue.Queue(); out = []
def work(n):
    for i in range(20):
        out.append((n, i)); q.put((n, i)); time.sleep(random.random() / 100)
ts = [threading.Thread(target=work, args=(n,)) for n in range(5)]
[t.start() for t in ts]; [t.join() for t in ts]
print(out, q.qsize(), threading.get_native_id())'`,
}

// Deterministic checks the promise of a substrate with deterministic machines: the same bytes again,
// and other random numbers with another seed. load, if set, makes the host busy until it is called
// again. The first run has a quiet host, the second a busy one.
func Deterministic(t *testing.T, s substrate.Substrate, c Config, load func() (stop func())) {
	m := c.Machine
	m.Shape.CPUs, m.Shape.Network = 1, false
	m.Determinism = &substrate.Determinism{Seed: sha256.Sum256([]byte("a")),
		Clock: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	first := deterministicRun(t, s, m, deterministicScripts)
	for i, out := range first {
		t.Logf("%s\n%s", deterministicScripts[i], out)
	}
	t.Run("busy", func(t *testing.T) {
		if load != nil {
			defer load()()
		}
		for i, got := range deterministicRun(t, s, m, deterministicScripts) {
			if was, is := difference(first[i], got); was != is {
				t.Errorf("%s\nfirst: %s\nagain: %s", deterministicScripts[i], was, is)
			}
		}
	})
	if !strings.Contains(first[1], "2026-01-01") {
		t.Errorf("the clock does not start when it should: %s", first[1])
	}
	m.Determinism.Seed[0]++
	if got := deterministicRun(t, s, m, deterministicScripts[:1]); got[0] == first[0] {
		t.Errorf("another seed gives the same random numbers: %s", got[0])
	}
}

// deterministicRun returns the outputs of scripts in a new machine.
func deterministicRun(t *testing.T, s substrate.Substrate, m substrate.Machine, scripts []string) (out []string) {
	t.Helper()
	vm, client := Clone(t, s, m, nil)
	defer vm.Close()
	for _, script := range scripts {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		var b, e bytes.Buffer
		_, err := client.Execute(ctx, wire.ShellExecuteParams{}, script,
			wire.Stdio{Out: &b, Err: &e}, nil)
		cancel()
		if err != nil {
			t.Fatalf("%s: %v", script, err)
		}
		out = append(out, b.String()+e.String())
	}
	return out
}

// difference returns the first lines in which a and b differ.
func difference(a, b string) (was, is string) {
	as, bs := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range max(len(as), len(bs)) {
		was, is = "(end)", "(end)"
		if i < len(as) {
			was = as[i]
		}
		if i < len(bs) {
			is = bs[i]
		}
		if was != is {
			return was, is
		}
	}
	return "", ""
}
