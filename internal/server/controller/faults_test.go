package controller

import (
	"database/sql"
	"fmt"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/server/fair"
)

// TestClockJumps: a clock that jumps by an hour, ahead and back, while creations wait, ends none of
// them and changes nothing of their order.
func TestClockJumps(t *testing.T) {
	w := newWorld(t, "n1")
	w.stop()
	var ahead atomic.Int64
	w.now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	w.waiting = fair.Limits{Wait: time.Hour}
	w.nodes[0].capacity = &v1.Machine{Cpus: 4, Memory: 64 << 30, Disk: 1 << 40}
	w.start()
	w.join(w.nodes[0])
	free := w.fill(w.nodes[0], w.as(with("filler")), 4)
	order := make(chan string, 3)
	for i, tenant := range []string{"a", "b", "a"} {
		c, name := w.as(with(tenant)), fmt.Sprint(tenant, i)
		go func() {
			if _, err := c.sandboxes.CreateSandbox(t.Context(), box(name, 1)); err != nil {
				t.Error(name, err)
			}
			order <- name
		}()
		w.eventually(name+" waits", func() bool { return w.Controller.gate.Waiting() == i+1 })
	}
	for i, want := range []string{"a0", "b1", "a2"} {
		ahead.Store([]int64{int64(time.Hour), -int64(time.Hour), 0}[i])
		free()
		if got := <-order; got != want {
			t.Errorf("%s was served, not %s", got, want)
		}
	}
}

// TestLockedDatabase: while a backup has the database locked, what reads is answered, and what
// writes waits for the end of the backup.
func TestLockedDatabase(t *testing.T) {
	w := newWorld(t, "n1")
	c, other := w.as(with("acme")), w.as(with("other"))
	var ids []string
	for i := range 2*runtime.GOMAXPROCS(0) + 2 {
		made, err := c.sandboxes.CreateSandbox(t.Context(), box(fmt.Sprint(i), 1))
		must(t, err)
		ids = append(ids, made.Msg.Sandbox.SandboxId)
	}
	db, err := sql.Open("sqlite", filepath.Join(w.dir, "server.db")+"?_pragma=busy_timeout(20000)")
	must(t, err)
	defer func() { _ = db.Close() }()
	lock, err := db.Conn(t.Context())
	must(t, err)
	_, err = lock.ExecContext(t.Context(), "BEGIN IMMEDIATE")
	must(t, err)
	made := make(chan error, 1)
	go func() {
		_, err := c.sandboxes.CreateSandbox(t.Context(), box("k", 1))
		made <- err
	}()
	w.eventually("the creation waits", func() bool { // for its commit: it counts already
		return int(w.ledger.Standing("acme").Held) == len(ids)+1
	})
	// More deletions than calls that are worked on at one time.
	var deleted sync.WaitGroup
	for _, id := range ids {
		deleted.Go(func() {
			_, err := c.sandboxes.DeleteSandbox(t.Context(), ask(&v1.DeleteSandboxRequest{SandboxId: id}))
			if err != nil {
				t.Error(err)
			}
		})
	}
	w.eventually("the node has deleted all", func() bool {
		w.nodes[0].mu.Lock()
		defer w.nodes[0].mu.Unlock()
		return w.nodes[0].calls["DeleteSandbox"] == len(ids)
	})
	for range 3 {
		_, err := c.sandboxes.ListSandboxes(t.Context(), ask(&v1.ListSandboxesRequest{}))
		must(t, err)
		_, err = other.sandboxes.ListSandboxes(t.Context(), ask(&v1.ListSandboxesRequest{}))
		must(t, err)
	}
	select {
	case err := <-made:
		t.Fatalf("it did not wait: %v", err)
	default:
	}
	_, err = lock.ExecContext(t.Context(), "ROLLBACK")
	must(t, err)
	must(t, lock.Close())
	must(t, <-made)
	deleted.Wait()
}
