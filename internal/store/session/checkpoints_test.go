package session

import (
	"bufio"
	"strings"
	"sync"
	"testing"

	"turnstone.dev/turnstone"
)

// TestReopenAfterDeath: of several processes that resume a killed turn, one succeeds, and the turn
// ends once. Its checkpoint is there until then, and for the next attempt if that one dies too.
func TestReopenAfterDeath(t *testing.T) { both(t, testReopenAfterDeath) }

func testReopenAfterDeath(t *testing.T, place placer) {
	dir := place(t)
	cmd := process(t, "checkpoint", dir)
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
	first := open(t, dir)
	if _, _, err := first.Reopen(t.Context(), id); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Errorf("a running turn is resumed: %v", err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	died(t, first)

	const others = 8
	var wg sync.WaitGroup
	var mu sync.Mutex
	var won []*DB
	for range others {
		db := open(t, dir)
		wg.Go(func() {
			running, c, err := db.Reopen(t.Context(), id)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				won = append(won, db)
				if c.Step != 2 || c.State != digest("state") || len(c.Resumed) != 1 ||
					c.Resumed[0].After != 2 || running.Status != turnstone.TurnRunning {
					t.Errorf("%+v, %+v", running, c)
				}
			case turnstone.KindOf(err) != turnstone.KindInvalid:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if len(won) != 1 {
		t.Fatalf("%d of %d resumed the turn", len(won), others)
	}
	// The winner dies without a new checkpoint.
	if err := won[0].Close(); err != nil {
		t.Fatal(err)
	}
	if x, err := first.Turn(t.Context(), id); err != nil || !x.Interrupted() {
		t.Fatalf("%+v, %v", x, err)
	}
	last := open(t, dir)
	_, c, err := last.Reopen(t.Context(), id)
	if err != nil || len(c.Resumed) != 2 {
		t.Fatalf("%+v, %v", c, err)
	}
	if err := last.SetCheckpoint(t.Context(), Checkpoint{Turn: id, Record: digest("r3"),
		State: digest("s3"), Step: 3}); err != nil {
		t.Fatal(err)
	}
	kept, err := first.Checkpoint(t.Context(), id)
	if err != nil || kept.Step != 3 || len(kept.Resumed) != 2 {
		t.Fatalf("%+v, %v", kept, err)
	}
	all, err := first.Checkpoints(t.Context())
	if err != nil || len(all) != 1 || all[0].Record != digest("r3") || all[0].ID != id {
		t.Fatalf("%+v, %v", all, err)
	}
	if _, _, err := last.Finish(t.Context(), Finish{Turn: id, Result: turnstone.ResultPassed,
		Record: digest("record"), State: digest("end"), MoveBranch: true}); err != nil {
		t.Fatal(err)
	}
	if kept, err := first.Checkpoint(t.Context(), id); err != nil || kept != nil {
		t.Errorf("an ended turn has the checkpoint %+v, %v", kept, err)
	}
	if _, _, err := first.Reopen(t.Context(), id); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Errorf("an ended turn is resumed: %v", err)
	}
	if err := last.SetCheckpoint(t.Context(), Checkpoint{Turn: id, Step: 4}); turnstone.KindOf(
		err) != turnstone.KindInvalid {
		t.Errorf("an ended turn gets a checkpoint: %v", err)
	}
	if left := leasesOf(t, last); len(left) > 0 {
		t.Errorf("leases are left: %q", left)
	}
}

// TestReopenWithoutCheckpoint: a turn that was interrupted before its first checkpoint stays so.
func TestReopenWithoutCheckpoint(t *testing.T) { both(t, testReopenWithoutCheckpoint) }

func testReopenWithoutCheckpoint(t *testing.T, place placer) {
	dir := place(t)
	db := open(t, dir)
	s, err := db.Ensure(t.Context(), "s")
	if err != nil {
		t.Fatal(err)
	}
	x, err := db.Start(t.Context(), StartTurn{Session: s.ID, Kind: "run"})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	again := open(t, dir)
	if _, _, err := again.Reopen(t.Context(), x.ID); turnstone.KindOf(err) !=
		turnstone.KindNotFound || turnstone.HintOf(err) == "" {
		t.Error(err)
	}
	if got, err := again.Turn(t.Context(), x.ID); err != nil || !got.Interrupted() {
		t.Errorf("%+v, %v", got, err)
	}
	if err := again.SetCheckpoint(t.Context(), Checkpoint{Turn: x.ID, Step: 1}); err == nil {
		t.Error("an interrupted turn gets a checkpoint")
	}
}
