package turns

import (
	"context"
	"database/sql"
	"os"
	"path/filepath"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/lease"
	"turnstone.dev/turnstone/internal/pg"
	"turnstone.dev/turnstone/internal/pg/pgtest"
	"turnstone.dev/turnstone/internal/server/node/shared"
)

// A fleet is nodes with one database, whose leases last so long that only the test ends them.
type fleet struct {
	t    *testing.T
	url  string
	pool *sql.DB
}

func newFleet(t *testing.T, s *pgtest.Server) *fleet {
	t.Helper()
	name := s.Schema(t.Name())
	pool, err := pg.Open(t.Context(), s.URL, name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pool.Close() })
	rows, err := lease.OpenRows(t.Context(), pool, time.Hour) // it makes the table
	if err != nil {
		t.Fatal(err)
	}
	rows.Close()
	return &fleet{t, s.URL + "&lease=1h&schema=" + name, pool}
}

// node makes a service that of a node. room is Common's.
func (f *fleet) node(c *scene, name string, room error) *scene {
	f.t.Helper()
	db, err := shared.Open(f.t.Context(), f.url)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _, _ = c.Close(), db.Close() })
	c.Common(Common{DB: db, Node: name, Room: func() error { return room },
		Limit: func(Ticket, bool) Limit { return open }})
	return c
}

// scene is a node whose executor knows a turn that may start again.
func (f *fleet) scene(name string, room error) (*scene, *survivor) {
	x := &survivor{player: newPlayer(), resumable: true, ended: turnstone.TurnReport{ID: killed,
		Result: turnstone.ResultError}}
	return f.node(newScene(f.t, f.t.TempDir(), x), name, room), x
}

// lost makes the nodes of all tickets silent.
func (f *fleet) lost() {
	f.t.Helper()
	if _, err := f.pool.ExecContext(f.t.Context(), "UPDATE tickets SET seen = '-infinity'"); err != nil {
		f.t.Fatal(err)
	}
}

// ticket returns who has the scene's ticket.
func (f *fleet) ticket(c *scene) (t shared.Ticket) {
	f.t.Helper()
	err := f.pool.QueryRowContext(f.t.Context(), "SELECT node, turn, attempt FROM tickets WHERE id = $1",
		c.ticket.ID).Scan(&t.Node, &t.Turn, &t.Attempt)
	if err != nil && err != sql.ErrNoRows {
		f.t.Fatal(err)
	}
	return t
}

// run starts the scene's turn.
func (f *fleet) run(c *scene) error { return start(c.connect(f.t, c.client), source, c.ticket.ID, nil) }

// TestCommon: what nodes do with the turns of others.
func TestCommon(t *testing.T) {
	s := pgtest.New(t, "fsync=off")
	for name, test := range map[string]func(*fleet){"no room": noRoom, "begin again": beginAgain,
		"taken": taken, "ended elsewhere": endedElsewhere} {
		t.Run(name, func(t *testing.T) { test(newFleet(t, s)) })
	}
}

// noRoom: a node without room, or whose disk takes no files, leaves a lost node's turn to another one, and
// the turn keeps its attempt.
func noRoom(f *fleet) {
	a, _ := f.scene("a", nil)
	others := func(name string, room error) (*scene, *survivor) {
		c, x := f.scene(name, room)
		if err := os.RemoveAll(filepath.Join(c.dir, c.ticket.ID)); err != nil { // it is a's
			f.t.Fatal(err)
		}
		return c, x
	}
	b := begun{Turn: killed, Retry: 1}
	if _, err := a.publish(f.t.Context(), a.ticket, filepath.Join(a.dir, a.ticket.ID), b); err != nil {
		f.t.Fatal(err)
	}
	f.lost()
	full, x := others("full", turnstone.Errorf("disk", turnstone.KindExhausted, "its disk", "is full"))
	broken, y := others("broken", nil)
	if err := os.RemoveAll(broken.dir); err != nil {
		f.t.Fatal(err)
	}
	for _, c := range []*scene{full, broken} {
		if err := c.look(); err != nil {
			f.t.Error(err)
		}
	}
	if got := f.ticket(a); got.Node != "a" || got.Attempt != 0 || len(x.resumed)+len(y.resumed) != 0 {
		f.t.Errorf("%+v, resumed %v %v", got, x.resumed, y.resumed)
	}
	works, z := others("works", nil)
	if err := works.look(); err != nil {
		f.t.Error(err)
	}
	if err := works.Drain(context.Background()); err != nil || len(z.resumed) != 1 {
		f.t.Errorf("%v, resumed %v", err, z.resumed)
	}
	if got := f.ticket(a); got.Node != "" {
		f.t.Errorf("the turn has ended: %+v", got)
	}
}

// beginAgain: a turn that could not begin leaves a ticket that can be used again, and nothing at other
// nodes that is about the turn before.
func beginAgain(f *fleet) {
	a, x := f.scene("a", nil)
	journal := filepath.Join(a.dir, a.ticket.ID, journalFile)
	if err := os.Mkdir(journal, 0o700); err != nil {
		f.t.Fatal(err)
	}
	if err := f.run(a); err == nil || f.ticket(a).Node != "" {
		f.t.Errorf("%v, %+v", err, f.ticket(a))
	}
	if err := os.Remove(journal); err != nil {
		f.t.Fatal(err)
	}
	// the answer of the database was lost
	if _, err := a.publish(f.t.Context(), a.ticket, filepath.Join(a.dir, a.ticket.ID),
		begun{Turn: killed}); err != nil {
		f.t.Fatal(err)
	}
	f.lost()
	if err := f.run(a); err != nil {
		f.t.Fatal(err)
	}
	<-x.first
	other, y := f.scene("b", nil)
	if err := other.look(); err != nil {
		f.t.Error(err)
	}
	if got := f.ticket(a); got.Node != "a" || got.Turn != x.req.ID || len(y.resumed) != 0 {
		f.t.Errorf("%+v, resumed %v", got, y.resumed)
	}
	close(x.go2)
	if err := a.Drain(context.Background()); err != nil {
		f.t.Error(err)
	}
}

// taken: a turn does not begin with a ticket that another node has by now.
func taken(f *fleet) {
	a, x := f.scene("a", nil)
	if _, err := f.pool.ExecContext(f.t.Context(), `INSERT INTO tickets (id, turn, node, ticket, begun,
		attempt, cancelled, started, seen) VALUES ($1, $2, 'b', '', '', 1, FALSE, now(), now())`,
		a.ticket.ID, killed); err != nil {
		f.t.Fatal(err)
	}
	for range 2 { // the ticket is as it was
		err := f.run(a)
		if turnstone.KindOf(err) != turnstone.KindUnavailable || x.runs.Load() != 0 {
			f.t.Errorf("%v, %d runs", err, x.runs.Load())
		}
	}
}

// endedElsewhere: a node comes back after another one has told the end of its turn. It does not run the
// turn again, although the turn was interrupted and may start again.
func endedElsewhere(f *fleet) {
	x := &survivor{player: newPlayer(), resumable: true, ended: turnstone.TurnReport{ID: killed,
		Result: turnstone.ResultError, Receipt: "last"}}
	c := killedScene(f.t, "", begun{Turn: killed, Retry: 1})
	c.x = x
	f.node(c, "a", nil)
	if err := c.Recover(func(Ticket, bool) Limit { return open }); err != nil {
		f.t.Fatal(err)
	}
	report, err := c.end(f.t)
	if report == nil || report.Receipt != "last" || len(x.resumed) != 0 {
		f.t.Errorf("%+v, %v, resumed %v", report, err, x.resumed)
	}
}
