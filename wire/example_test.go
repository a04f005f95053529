package wire_test

import (
	"context"
	"fmt"
	"log"
	"net"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/wire"
)

// A journal answers two commands of the domain Trace. The embedded interface is nil: a call of
// another command would panic.
type journal struct{ wire.TraceServer }

// Enable sends an event after the answer.
func (journal) Enable(ctx context.Context, c *wire.Conn) error {
	wire.AfterReply(ctx, func() {
		_ = c.EmitTraceEntry(c.Context(), &wire.TraceEntryEvent{
			Entry: wire.TraceEntry{Sequence: 1, Method: wire.MethodTraceEnable}})
	})
	return nil
}

// GetEntries returns an error, which reaches the caller with its kind and its hint.
func (journal) GetEntries(context.Context, *wire.Conn, *wire.TraceGetEntriesParams) (
	*wire.TraceGetEntriesResult, error) {
	return nil, turnstone.Errorf(wire.MethodTraceGetEntries, turnstone.KindUnavailable, "journal",
		"no entry is kept").WithHint("follow the events")
}

// Two ends of a connection: one end answers the commands of a domain, the other end calls the
// commands and receives an event.
func Example() {
	ctx := context.Background()
	near, far := net.Pipe()
	d := wire.NewDispatcher()
	wire.RegisterTrace(d, journal{})
	server := wire.NewConn(far, wire.Options{Dispatcher: d})
	events := make(chan wire.Event, 1)
	client := wire.NewConn(near, wire.Options{OnEvent: func(e wire.Event) { events <- e }})

	if err := client.TraceEnable(ctx); err != nil {
		log.Fatal(err)
	}
	event, err := wire.DecodeEvent(<-events)
	if err != nil {
		log.Fatal(err)
	}
	entry := event.(*wire.TraceEntryEvent).Entry
	fmt.Println(entry.Sequence, entry.Method)
	_, err = client.TraceGetEntries(ctx, &wire.TraceGetEntriesParams{})
	fmt.Println(turnstone.KindOf(err), "-", err, "-", turnstone.HintOf(err))

	_ = client.Close()
	client.Wait()
	server.Wait()
	// Output:
	// 1 Trace.enable
	// unavailable - journal: no entry is kept - follow the events
}
