package topcmd

import (
	"os"
	"path/filepath"
	"testing"

	"turnstone.dev/turnstone/sandboxes"
)

// TestUsage: a holder has what it and its descendants use, unless its PID is another process's.
func TestUsage(t *testing.T) {
	all := processes("/proc")
	me, ok := all[os.Getpid()]
	if !ok || me.resident == 0 || me.start == 0 || me.parent != os.Getppid() {
		t.Fatalf("this process is %+v", me)
	}
	holder := sandboxes.Process{PID: os.Getpid(), Start: me.start}
	other := sandboxes.Process{PID: os.Getpid(), Start: me.start + 1}
	used := usage([]sandboxes.Info{{ID: "sb_1", Holder: holder, State: sandboxes.StateReady},
		{ID: "sb_2", Holder: other, State: sandboxes.StateReady},
		{ID: "sb_3", Holder: holder, State: sandboxes.StateStopped}})
	if len(used) != 1 || used["sb_1"].memory == 0 {
		t.Errorf("%+v", used)
	}
}

// TestSum: descendants are counted once, also in a circle of numbers that were used again.
func TestSum(t *testing.T) {
	all := map[int]process{1: {parent: 3, cpu: 1}, 2: {parent: 1, cpu: 10}, 3: {parent: 2, cpu: 100},
		4: {parent: 9, cpu: 1000}}
	var u use
	sum(all, map[int][]int{1: {2}, 2: {3}, 3: {1}}, 1, map[int]bool{}, &u)
	if u.cpu != 111 {
		t.Errorf("%d", u.cpu)
	}
}

// TestProcesses: what is no process, or cannot be parsed, is left out.
func TestProcesses(t *testing.T) {
	dir := t.TempDir()
	const good = "5 (a ) b\x1b) S 7 5 5 0 -1 4 0 0 0 0 11 12 13 14 20 0 1 0 99 1000 33 184 1 1 1 1"
	for name, text := range map[string]string{"5": good, "6": "6 (x) S 1", "7": "", "8": "no",
		"9": "9 (x) S -7 5 5 0 -1 4 0 0 0 0 11 12 13 14 20 0 1 0 99 1000 33", "x": good} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name, "stat"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	all := processes(dir)
	if len(all) != 1 || all[5] != (process{parent: 7, cpu: 500_000_000, resident: 33, start: 99}) {
		t.Errorf("%+v", all)
	}
}

func FuzzStat(f *testing.F) {
	f.Add([]byte("5 (a) S 7 5 5 0 -1 4 0 0 0 0 11 12 13 14 20 0 1 0 99 1000 33"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if p, ok := parseStat(text); ok && (p.cpu < 0 || p.resident < 0 || p.parent < 0) {
			t.Errorf("%q is %+v", text, p)
		}
	})
}
