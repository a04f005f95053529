package session

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/pg/pgtest"
)

// TestMain lets the tests start themselves as another process.
func TestMain(m *testing.M) {
	if role := os.Getenv("SESSION_TEST_ROLE"); role != "" {
		if err := play(role, os.Getenv("SESSION_TEST_DIR")); err != nil {
			fmt.Fprintln(os.Stderr, err, turnstone.HintOf(err))
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(pgtest.Main(m))
}

// play is the work of another process.
func play(role, dir string) error {
	ctx := context.Background()
	db, err := openPlace(ctx, dir)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	s, err := db.Ensure(ctx, "s")
	if err != nil {
		return err
	}
	switch role {
	case "race": // three turns, each on the current head
		for range 3 {
			t, err := db.Start(ctx, StartTurn{Session: s.ID, Kind: "run"})
			if err != nil {
				return err
			}
			var head *turnstone.TurnID
			if p := t.Parent(); p != "" {
				head = &p
			}
			branch, diverged, err := db.Finish(ctx,
				Finish{Turn: t.ID, Result: turnstone.ResultPassed, Record: digest(string(t.ID)),
					MoveBranch: true, ExpectedHead: head})
			if err != nil {
				return err
			}
			fmt.Println(t.ID, t.Number, branch, diverged)
		}
	case "start": // begins a turn, and waits to be killed
		t, err := db.Start(ctx, StartTurn{Session: s.ID, Kind: "run"})
		if err != nil {
			return err
		}
		fmt.Println(t.ID)
		_, _ = io.ReadAll(os.Stdin)
	case "checkpoint": // begins a turn, keeps two steps, and waits to be killed
		t, err := db.Start(ctx, StartTurn{Session: s.ID, Kind: "run"})
		if err != nil {
			return err
		}
		for step := range 2 {
			if err := db.SetCheckpoint(ctx, Checkpoint{Turn: t.ID, Record: digest("steps"),
				State: digest("state"), Step: step + 1}); err != nil {
				return err
			}
		}
		fmt.Println(t.ID)
		_, _ = io.ReadAll(os.Stdin)
	case "churn": // is killed at any point
		fmt.Println("ready")
		for {
			t, err := db.Start(ctx, StartTurn{Session: s.ID, Kind: "run"})
			if err != nil {
				return err
			}
			head := t.Parent()
			if _, _, err := db.Finish(ctx, Finish{Turn: t.ID, Result: turnstone.ResultPassed,
				Record: digest(string(t.ID)), MoveBranch: true, ExpectedHead: &head}); err != nil {
				return err
			}
			fmt.Println("done", t.ID)
		}
	}
	return nil
}

func process(t *testing.T, role, dir string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "SESSION_TEST_ROLE="+role, "SESSION_TEST_DIR="+dir)
	cmd.Stderr = os.Stderr
	return cmd
}

// TestRace: 20 processes create the database and run turns on a branch concurrently.
func TestRace(t *testing.T) { both(t, testRace) }

func testRace(t *testing.T, place placer) {
	dir := place(t)
	const processes, each = 20, 3
	outs := make(chan []byte, processes)
	for range processes {
		cmd := process(t, "race", dir)
		go func() {
			out, err := cmd.Output()
			if err != nil {
				t.Error(err)
			}
			outs <- out
		}()
	}
	numbers, ids, onMain := map[int]bool{}, map[string]bool{}, 0
	for range processes {
		for line := range strings.Lines(string(<-outs)) {
			f := strings.Fields(line)
			n, _ := strconv.Atoi(f[1])
			if numbers[n] || ids[f[0]] {
				t.Errorf("twice: %s", line)
			}
			numbers[n], ids[f[0]] = true, true
			if f[3] == "false" {
				onMain++
			} else if f[2] != fmt.Sprintf("main-%d", n) {
				t.Errorf("diverged onto %s", line)
			}
		}
	}
	db := open(t, dir)
	s := must[turnstone.Session](t)(db.Find(t.Context(), "s"))
	g := must[*turnstone.Graph](t)(db.Graph(t.Context(), s.ID))
	if len(ids) != processes*each || len(g.Turns) != len(ids) || g.Turns[0].Number != len(ids) {
		t.Errorf("%d turns were told, %d are there, the last is number %d", len(ids),
			len(g.Turns), g.Turns[0].Number)
	}
	if len(g.Branches) != 1+len(ids)-onMain {
		t.Errorf("%d branches, %d turns on main", len(g.Branches), onMain)
	}
	// The winners form a line.
	n := 0
	for _, err := range db.History(t.Context(), must[turnstone.Turn](t)(db.Resolve(t.Context(),
		"s"))) {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	if n != onMain {
		t.Errorf("main has %d turns, %d say that they are on it", n, onMain)
	}
	wellKept(t, db)
}

func wellKept(t *testing.T, db *DB) {
	t.Helper()
	if found := must[[]string](t)(db.Check(t.Context())); len(found) > 0 {
		t.Errorf("the database is damaged: %q", found)
	}
}

// TestInterrupted: the process that runs a turn is killed.
func TestInterrupted(t *testing.T) { both(t, testInterrupted) }

func testInterrupted(t *testing.T, place placer) {
	dir := place(t)
	cmd := process(t, "start", dir)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stdin.Close() }()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	id := turnstone.TurnID(strings.TrimSpace(line))
	db := open(t, dir)
	if x := must[turnstone.Turn](t)(db.Turn(t.Context(), id)); x.Status != turnstone.TurnRunning {
		t.Errorf("while it runs: %+v", x)
	}
	if n := must[int](t)(db.SweepLeases(t.Context())); n != 0 {
		t.Errorf("%d leases of running turns were removed", n)
	}
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	died(t, db)
	x := must[turnstone.Turn](t)(db.Turn(t.Context(), id))
	if x.Status != turnstone.TurnDone || x.Result != turnstone.ResultError || !x.Interrupted() ||
		x.Ended.IsZero() {
		t.Errorf("when it was killed: %+v", x)
	}
	if left := leasesOf(t, db); len(left) != 0 {
		t.Errorf("leases left: %v", left)
	}
	s := must[turnstone.Session](t)(db.Find(t.Context(), "s"))
	if next := grow(t, db, s, Main); next.Number != 2 || len(next.Parents) != 0 {
		t.Errorf("the next one: %+v", next)
	}
	if err := db.Remove(t.Context(), s.ID); err != nil {
		t.Error(err)
	}
}

// TestKilledAnywhere: the reported work of a killed process is stored, and nothing is incomplete.
func TestKilledAnywhere(t *testing.T) { both(t, testKilledAnywhere) }

func testKilledAnywhere(t *testing.T, place placer) {
	dir := place(t)
	said := 0
	for i := 0; i < 12 || said == 0 && i < 500; i++ { // on a slow machine later ones do something
		cmd := process(t, "churn", dir)
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		in := bufio.NewReader(stdout)
		if _, err := in.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(time.Duration(2+7*i)*time.Millisecond, func() { _ = cmd.Process.Kill() })
		var done []turnstone.TurnID
		for {
			line, err := in.ReadString('\n')
			if err != nil {
				break
			}
			done = append(done,
				turnstone.TurnID(strings.TrimPrefix(strings.TrimSpace(line), "done ")))
		}
		_ = cmd.Wait()
		said += len(done)
		db := open(t, dir)
		died(t, db)
		for _, id := range done {
			if x, err := db.Turn(t.Context(), id); err != nil || x.Status != turnstone.TurnDone ||
				x.Record == "" {
				t.Errorf("it was said to be done: %+v, %v", x, err)
			}
		}
		g := must[*turnstone.Graph](t)(db.Graph(t.Context(),
			must[turnstone.Session](t)(db.Find(t.Context(), "s")).ID))
		byID := map[turnstone.TurnID]turnstone.Turn{}
		for _, x := range g.Turns {
			byID[x.ID] = x
			if x.Status == turnstone.TurnRunning {
				t.Errorf("still running: %+v", x)
			}
		}
		// A turn is done if and only if its branch reaches it.
		reached := map[turnstone.TurnID]bool{}
		for _, b := range g.Branches {
			for id := b.Head; id != ""; id = byID[id].Parent() {
				reached[id] = true
			}
		}
		for _, x := range g.Turns {
			if reached[x.ID] != (x.Record != "") {
				t.Errorf("by halves: %+v, reached: %v", x, reached[x.ID])
			}
		}
		wellKept(t, db)
		_ = db.Close()
	}
	t.Logf("%d turns before the kills", said)
	if said == 0 {
		t.Error("nothing was done before the kills")
	}
}

// FuzzResolve: any reference results in a turn or an error of kind Invalid or NotFound.
func FuzzResolve(f *testing.F) {
	db := open(f, f.TempDir())
	s := must[turnstone.Session](f)(db.Create(f.Context(), "s"))
	grow(f, db, s, Main)
	for _, ref := range []string{"s", "s@1", "s@main~1", "t_0", "s~", "@", "s@@", "s'--", "s_%", "s\x00", "s@\xff"} {
		f.Add(ref)
	}
	f.Fuzz(func(t *testing.T, ref string) {
		for _, resolve := range []func() (turnstone.Turn, error){
			func() (turnstone.Turn, error) { return db.Resolve(context.Background(), ref) },
			func() (turnstone.Turn, error) { return db.ResolveIn(context.Background(), s.ID, ref) },
		} {
			x, err := resolve()
			if k := turnstone.KindOf(err); err != nil && k != turnstone.KindInvalid &&
				k != turnstone.KindNotFound {
				t.Errorf("%q: %v", ref, err)
			}
			if err == nil && x.Session != s.ID {
				t.Errorf("%q: %+v", ref, x)
			}
		}
	})
}

// TestText: text that a database does not store, such as zero bytes, names nothing.
func TestText(t *testing.T) { both(t, testText) }

func testText(t *testing.T, place placer) {
	db := open(t, place(t))
	must[turnstone.Session](t)(db.Create(t.Context(), "s"))
	for _, ref := range []string{"s\x00", "\x00", "s@\xff", "\xff", "t_\x00aaaaaaaa", "s_\xffaaaaaaaa",
		"s@a\x00", "\u2028", "s@%", "_", "s'--"} {
		for _, resolve := range []func() (turnstone.Turn, error){
			func() (turnstone.Turn, error) { return db.Resolve(t.Context(), ref) },
			func() (turnstone.Turn, error) { return db.ResolveIn(t.Context(), "s", ref) },
		} {
			_, err := resolve()
			if k := turnstone.KindOf(err); k != turnstone.KindInvalid && k != turnstone.KindNotFound {
				t.Errorf("%q: %v", ref, err)
			}
		}
	}
}
