package process

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"testing/synctest"
	"time"
)

// fakeGroups are groups of a kernel that counts without enforcing: folders with files.
func fakeGroups(t *testing.T, used, limit int64, pids ...int) (*Groups, *cgroup) {
	t.Helper()
	g := &Groups{dir: t.TempDir(), live: make(map[*cgroup]struct{})}
	g.memoryMax.Store(limit)
	c := &cgroup{owner: g, dir: filepath.Join(g.dir, "1")}
	g.live[c] = struct{}{}
	list := ""
	for _, pid := range pids {
		list += strconv.Itoa(pid) + "\n"
	}
	for name, text := range map[string]string{"cgroup.events": "populated 1\nfrozen 0\n",
		"memory.current": strconv.FormatInt(used, 10) + "\n",
		"1/cgroup.procs": "", "1/below/cgroup.procs": list} {
		path := filepath.Join(g.dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return g, c
}

// setUse changes the use at once, so that nobody reads an empty file.
func setUse(g *Groups, used int64) error {
	next := filepath.Join(g.dir, "next")
	if err := os.WriteFile(next, []byte(strconv.FormatInt(used, 10)+"\n"), 0o644); err != nil {
		return err
	}
	return os.Rename(next, filepath.Join(g.dir, "memory.current"))
}

// Above the limit the largest process is killed, and reported like a process that Linux kills.
func TestEnforceMemory(t *testing.T) {
	var pids []int
	large := exec.Command("bash", "-c", "x=$(head -c 30000000 /dev/zero | tr '\\0' x); echo; read")
	small := exec.Command("sleep", "1000")
	for _, cmd := range []*exec.Cmd{small, large} {
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if cmd == large {
			if _, err := out.Read(make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
		}
		defer func() { _ = in.Close(); _ = cmd.Process.Kill(); _ = cmd.Wait() }()
		pids = append(pids, cmd.Process.Pid)
	}
	g, c := fakeGroups(t, 99, 100, pids...)
	ended := make(chan error, 1)
	go func() {
		_ = large.Wait()
		ended <- setUse(g, 9)
	}()
	g.enforce = make(chan struct{}, 1)
	if pause, again := g.enforceOnce(); !again || pause != leastPause || c.oomKills() != 0 {
		t.Errorf("below the limit: %v %v", pause, again)
	}
	g.memoryMax.Store(98)
	if _, again := g.enforceOnce(); !again {
		t.Error("no process is left")
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(2 * time.Minute):
		t.Fatal("the largest lives")
	}
	if g.residentPages(small.Process.Pid) <= 0 {
		t.Error("the small one was killed")
	}
	if n := c.oomKills(); n != 1 {
		t.Errorf("%d kills", n)
	}
	if n := c.oomKills(); n != 0 {
		t.Errorf("%d more", n)
	}
}

// Nothing else is killed until the memory of a killed process is released, however late that is,
// unless other processes use more and more, or the memory was released and is not enough.
func TestSettle(t *testing.T) {
	const before, limit, freed = 600 << 20, 500 << 20, 50 << 20
	for name, c := range map[string]struct {
		soon int64 // the use after half a second, when the kernel may have counted late; 0: as before
		then int64 // the use after five seconds
		want time.Duration
	}{
		"counted late":              {soon: before + 100<<20, then: before + 100<<20, want: settleTime},
		"counted late, others grow": {soon: before + 100<<20, then: before + 100<<20 + settleGrowth + 1, want: 5 * time.Second},
		"released late":             {then: limit, want: 5 * time.Second},
		"not enough":                {then: before - freed, want: 5 * time.Second},
		"others grow":               {then: before + settleGrowth + 1, want: 5 * time.Second},
		"never released":            {then: before, want: settleTime},
		"released in part":          {then: before - freed + 1, want: settleTime},
	} {
		t.Run(name, func(t *testing.T) {
			g, _ := fakeGroups(t, before, limit)
			synctest.Test(t, func(t *testing.T) {
				if c.soon > 0 {
					time.AfterFunc(time.Second/2, func() {
						if err := setUse(g, c.soon); err != nil {
							t.Error(err)
						}
					})
				}
				time.AfterFunc(5*time.Second, func() {
					if err := setUse(g, c.then); err != nil {
						t.Error(err)
					}
				})
				start := time.Now()
				g.settle(before, freed)
				if took := time.Since(start); took < c.want || took > c.want+2*leastPause {
					t.Errorf("%v, want %v", took, c.want)
				}
			})
		})
	}
}

// The free memory determines the time until the next check.
func TestEnforcePause(t *testing.T) {
	for used, want := range map[int64]time.Duration{0: longestLook, 1 << 40: longestLook,
		1<<40 + 1<<39: longestLook, 2<<40 - 1: leastPause, 2<<40 - 40<<20: 9765625} {
		g, _ := fakeGroups(t, used, 2<<40)
		if pause, again := g.enforceOnce(); pause != want || !again {
			t.Errorf("%d: %v %v, want %v", used, pause, again, want)
		}
	}
	g, c := fakeGroups(t, 5, 0)
	if pause, again := g.enforceOnce(); pause != longestLook || !again {
		t.Error("without a limit")
	}
	delete(g.live, c)
	err := os.WriteFile(filepath.Join(g.dir, "cgroup.events"), []byte("populated 0\n"), 0o644)
	if err != nil {
		t.Fatal(err)
	}
	if _, again := g.enforceOnce(); again {
		t.Error("it looks after nobody")
	}
}

// A group is empty between its taking and the fork of its process: the check goes on, because nothing
// signals it later.
func TestEnforceWhileStarting(t *testing.T) {
	g, fake := fakeGroups(t, 5, 10)
	delete(g.live, fake)
	g.next = 1
	empty := []byte("populated 0\n")
	if err := os.WriteFile(filepath.Join(g.dir, "cgroup.events"), empty, 0o644); err != nil {
		t.Fatal(err)
	}
	c, err := g.take()
	if err != nil {
		t.Fatal(err)
	}
	if _, again := g.enforceOnce(); !again {
		t.Error("the checks end before a process is forked")
	}
	if err := os.WriteFile(filepath.Join(c.dir, "cgroup.events"), empty, 0o644); err != nil {
		t.Fatal(err)
	}
	c.release()
	if _, again := g.enforceOnce(); again {
		t.Error("the checks go on without a process")
	}
}

func TestParseStat(t *testing.T) {
	for text, want := range map[string]procState{
		"17 (bash) S 1 17 17 0 -1 4194560":  {parent: 1, state: 'S'},
		"18 (a) b) ( T) Z 5) T 17 17 17 0":  {parent: 17, state: 'T'},
		"19 (line\nfeed) D 2147483647 1 1 ": {parent: 2147483647, state: 'D'},
	} {
		if got, ok := parseStat(text); !ok || got != want {
			t.Errorf("%q: %+v", text, got)
		}
	}
	for _, bad := range []string{"", "17", "17 (bash)", "17 (bash) S", "17 (bash) S x",
		"17 (bash) SS 1"} {
		if got, ok := parseStat(bad); ok {
			t.Errorf("%q: %+v", bad, got)
		}
	}
	if procs, err := new(holder).processes(); err != nil || len(procs) == 0 {
		t.Error(procs, err)
	} else {
		seen := map[int]bool{1: true, 0: true}
		for _, p := range procs {
			if p.depth > 0 && !seen[p.parent] {
				t.Errorf("%+v comes before its parent", p)
			}
			seen[p.pid] = true
		}
	}
	if err := new(holder).hold(t.Context()); err == nil {
		t.Error("it would have stopped every process")
	}
}
