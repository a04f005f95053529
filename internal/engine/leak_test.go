package engine

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/leaktest"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/turntest"
)

// TestNothingIsLeft checks that turns, however they end, leave no goroutine, no open file and no
// temporary file in a process that runs many turns.
//
//testrun:user
func TestNothingIsLeft(t *testing.T) {
	shared := turntest.Home(t)
	h := &statedir.Dir{Root: t.TempDir()}
	for _, part := range []string{"templates", "kernel", "snapshots", "cache"} {
		_, err := shared.MkdirAll(part) // no test may have run before
		if err == nil {
			err = os.Symlink(shared.Path(part), h.Path(part))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	before := goleak.IgnoreCurrent()
	x := testEngine(h)
	file := h.Path("value")
	if err := os.WriteFile(file, []byte("tok-5f3a-XYZZY"), 0o600); err != nil {
		t.Fatal(err)
	}
	open := func() (paths []string) {
		for _, e := range ok[[]os.DirEntry](t)(os.ReadDir("/proc/self/fd")) {
			to, _ := os.Readlink("/proc/self/fd/" + e.Name())
			// The store keeps a bounded number of packs open.
			if !strings.HasPrefix(to, h.Path("store")) {
				paths = append(paths, to)
			}
		}
		slices.Sort(paths)
		return paths
	}
	turns := func() {
		var passed string
		for result, req := range map[turnstone.Result]plan.Request{
			turnstone.ResultPassed:   {Document: parse(t, step("", "echo x > f"))},
			turnstone.ResultFailed:   {Document: parse(t, step("", "rm f; exit 1"))},
			turnstone.ResultTimedOut: {Document: parse(t, step("timeout=1s", "sleep 60"))},
			turnstone.ResultError: {Document: parse(t, step("", "cat value")),
				Add: []document.Transfer{{Path: file}}, Secrets: []string{"T=tok-5f3a-XYZZY"}},
		} {
			req.Session = "s"
			turn, err := x.Run(t.Context(), req, &observer{})
			if err != nil || turn.Result != result {
				t.Fatalf("%v, %+v, want %s", err, turn, result)
			}
			if result == turnstone.ResultPassed {
				passed = string(turn.ID)
			}
		}
		turn := ok[*turnstone.TurnReport](t)(x.Run(t.Context(),
			plan.Request{Document: parse(t, step("", "sleep 99 &")), Session: "v",
				Snapshot: document.SnapshotVM}, &observer{}))
		if turn.Result != turnstone.ResultPassed {
			t.Errorf("%+v", turn)
		}
		if rep := ok[*turnstone.ReplayReport](t)(x.Replay(t.Context(), passed, ReplayOptions{},
			&observer{})); !rep.Same {
			t.Errorf("%+v", rep)
		}
	}
	turns() // opens the files that stay open as long as the executor
	x.Launcher.Wait()
	files := open()
	turns()
	x.Launcher.Wait()
	now := open()
	for until := time.Now().Add(time.Minute); len(now) > len(files) && time.Now().Before(until); now = open() {
		time.Sleep(10 * time.Millisecond) // what waits for the end of a machine closes its file then
	}
	if len(now) > len(files) {
		t.Errorf("open are\n%s\nand before\n%s", strings.Join(now, "\n"), strings.Join(files, "\n"))
	}
	if err := x.Close(); err != nil {
		t.Error(err)
	}
	if err := leaktest.Find(before); err != nil {
		t.Error(err)
	}
	for _, dir := range []string{"sandboxes", "leases"} {
		if left, _ := os.ReadDir(h.Path(dir)); len(left) > 0 {
			t.Errorf("%s: %v", dir, left)
		}
	}
}
