package controller

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
)

// BenchmarkTurn measures what the controller adds to a turn: StartTurn and ConnectTurn with a
// token, over loopback, with SQLite on disk and a node that answers at once.
func BenchmarkTurn(b *testing.B) {
	for _, session := range []string{"", "research"} {
		b.Run("session="+session, func(b *testing.B) {
			w := newWorld(b, "a")
			c := w.as(with("acme"))
			if session != "" {
				_, err := c.sessions.CreateSession(b.Context(), ask(&v1.CreateSessionRequest{
					Name: session, Client: newClient()}))
				must(b, err)
			}
			i, used := 0, processTime(b)
			for b.Loop() {
				i++
				t := w.startTurn(c, fmt.Sprint("k", i), session)
				_, err := c.turns.ConnectTurn(b.Context(), ask(&v1.ConnectTurnRequest{
					TicketId: t.Turn.TicketId, Client: newClient()}))
				must(b, err)
			}
			// Of the caller, the controller and the node together, on a machine that does other
			// work too.
			b.ReportMetric(float64(processTime(b)-used)/1e6/float64(b.N), "cpu-ms/op")
		})
	}
}

// processTime returns the CPU time of this process.
func processTime(b *testing.B) time.Duration {
	var r unix.Rusage
	must(b, unix.Getrusage(unix.RUSAGE_SELF, &r))
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// BenchmarkGet measures a call that only reads.
func BenchmarkGet(b *testing.B) {
	w := newWorld(b, "a")
	c := w.as(with("acme"))
	id := w.create(c, &v1.CreateSandboxRequest{}).Sandbox.SandboxId
	for b.Loop() {
		_, err := c.sandboxes.GetSandbox(b.Context(), ask(&v1.GetSandboxRequest{SandboxId: id}))
		must(b, err)
	}
}
