// Package otlp converts traces of turns to OpenTelemetry: spans for the turn, its steps, their
// commands and network connections, as OTLP in a file or to a collector. docs/trace.md has the
// attributes.
package otlp

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/netip"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"turnstone.dev/turnstone"
)

// batch bounds the spans of one message.
const batch = 2000

// Read calls each for every line of a trace, in order.
type Read func(each func(turnstone.TraceLine) error) error

// Convert calls send with the spans of a trace, in messages of at most about 2000 spans.
func Convert(ctx context.Context, read Read, send func(ptrace.Traces) error) error {
	c := &converter{send: send}
	c.open()
	err := read(func(l turnstone.TraceLine) error {
		if err := ctx.Err(); err != nil {
			return turnstone.NewError("otlp.convert", turnstone.KindCanceled, "", err)
		}
		return c.line(l)
	})
	if err != nil || c.spans.Len() == 0 {
		return err
	}
	return send(c.traces)
}

type converter struct {
	send   func(ptrace.Traces) error
	traces ptrace.Traces
	spans  ptrace.SpanSlice

	turn  turnstone.TraceHead
	step  *turnstone.TraceStep
	stage map[int]pcommon.SpanID // spans of the step's commands
}

// open begins a message.
func (c *converter) open() {
	c.traces = ptrace.NewTraces()
	rs := c.traces.ResourceSpans().AppendEmpty()
	rs.Resource().Attributes().PutStr("service.name", "turnstone")
	rs.Resource().Attributes().PutStr("service.version", turnstone.Version)
	ss := rs.ScopeSpans().AppendEmpty()
	ss.Scope().SetName("turnstone.dev/turnstone")
	ss.Scope().SetVersion(turnstone.Version)
	c.spans = ss.Spans()
}

func (c *converter) line(l turnstone.TraceLine) error {
	if c.spans.Len() >= batch {
		if err := c.send(c.traces); err != nil {
			return err
		}
		c.open()
	}
	switch {
	case l.Turn != nil:
		c.turn = *l.Turn
		c.turnSpan()
	case l.Step != nil:
		c.step, c.stage = l.Step, map[int]pcommon.SpanID{}
		if !c.step.Started.IsZero() {
			c.stepSpan()
		}
	case l.Command != nil:
		c.commandSpan(l.Command)
	}
	return nil
}

// traceID and spanID are derived from IDs, so that a second export gives the same spans.
func (c *converter) traceID() pcommon.TraceID {
	sum := sha256.Sum256([]byte("turnstone trace " + string(c.turn.ID)))
	return pcommon.TraceID(sum[:16])
}

func (c *converter) spanID(of string) pcommon.SpanID {
	sum := sha256.Sum256([]byte("turnstone span " + string(c.turn.ID) + " " + of))
	return pcommon.SpanID(sum[:8])
}

func (c *converter) span(name, of string, start, end time.Time) ptrace.Span {
	s := c.spans.AppendEmpty()
	s.SetTraceID(c.traceID())
	s.SetSpanID(c.spanID(of))
	s.SetName(name)
	s.SetKind(ptrace.SpanKindInternal)
	s.SetStartTimestamp(pcommon.NewTimestampFromTime(start))
	s.SetEndTimestamp(pcommon.NewTimestampFromTime(end))
	return s
}

func (c *converter) turnSpan() {
	t := c.turn
	s := c.span(fmt.Sprintf("turn %d", t.Number), "turn", t.Started,
		t.Started.Add(time.Duration(t.Millis)*time.Millisecond))
	a := s.Attributes()
	a.PutStr("turnstone.turn.id", string(t.ID))
	a.PutStr("turnstone.session.id", string(t.Session))
	a.PutInt("turnstone.turn.number", int64(t.Number))
	a.PutStr("turnstone.turn.result", string(t.Result))
	a.PutStr("turnstone.image", t.Image)
	a.PutStr("turnstone.substrate", t.Substrate)
	if t.Result != turnstone.ResultPassed {
		s.Status().SetCode(ptrace.StatusCodeError)
		s.Status().SetMessage(string(t.Result))
	}
}

func (c *converter) stepSpan() {
	t := c.step
	of := fmt.Sprintf("step %d", t.Index)
	s := c.span("step "+t.Name, of, t.Started,
		t.Started.Add(time.Duration(t.Millis)*time.Millisecond))
	s.SetParentSpanID(c.spanID("turn"))
	a := s.Attributes()
	a.PutStr("turnstone.step.name", t.Name)
	a.PutInt("turnstone.step.index", int64(t.Index))
	a.PutStr("turnstone.step.status", string(t.Status))
	a.PutInt("code.line.number", int64(t.Line))
	a.PutInt("turnstone.step.commands", t.Commands)
	a.PutInt("turnstone.step.commands.left_out", t.LeftOut)
	a.PutInt("turnstone.stdout.size", t.Stdout.Bytes)
	a.PutInt("turnstone.stderr.size", t.Stderr.Bytes)
	exit(s, t.ExitCode)
	if t.Status != turnstone.StepPassed && t.Status != turnstone.StepSkipped {
		s.Status().SetCode(ptrace.StatusCodeError)
		s.Status().SetMessage(string(t.Status))
	}
	if t.Network != nil {
		for _, r := range t.Network.Refused {
			e := s.Events().AppendEmpty()
			e.SetName("network.refused")
			e.SetTimestamp(s.StartTimestamp())
			e.Attributes().PutStr("network.transport", r.Protocol)
			e.Attributes().PutStr("server.address", r.Target)
			e.Attributes().PutStr("turnstone.reason", r.Reason)
			e.Attributes().PutInt("turnstone.count", r.Count)
		}
	}
	for i, conn := range t.Connections {
		c.connectionSpan(of, i, conn)
	}
}

// exit sets the attributes of a process that ended, as the semantic conventions for programs of the
// command line say.
func exit(s ptrace.Span, code *int) {
	if code == nil {
		return
	}
	s.Attributes().PutInt("process.exit.code", int64(*code))
	if *code != 0 {
		s.Attributes().PutStr("error.type", fmt.Sprint(*code))
		s.Status().SetCode(ptrace.StatusCodeError)
		s.Status().SetMessage(fmt.Sprintf("exit %d", *code))
	}
}

func (c *converter) connectionSpan(step string, i int, conn turnstone.ConnectionReport) {
	name := conn.Protocol
	s := c.span("connect "+name, fmt.Sprintf("%s connection %d", step, i), conn.Start, conn.End)
	s.SetParentSpanID(c.spanID(step))
	s.SetKind(ptrace.SpanKindClient)
	a := s.Attributes()
	a.PutStr("network.transport", conn.Protocol)
	if conn.Host != "" {
		a.PutStr("server.address", conn.Host)
	}
	if to, err := netip.ParseAddrPort(conn.Address); err == nil {
		a.PutStr("network.peer.address", to.Addr().String())
		a.PutInt("network.peer.port", int64(to.Port()))
		a.PutInt("server.port", int64(to.Port()))
		if conn.Host == "" {
			a.PutStr("server.address", to.Addr().String())
		}
	}
	a.PutInt("turnstone.network.sent", conn.Sent)
	a.PutInt("turnstone.network.received", conn.Received)
}

func (c *converter) commandSpan(r *turnstone.CommandReport) {
	if c.step == nil || c.step.Started.IsZero() {
		return
	}
	step := fmt.Sprintf("step %d", c.step.Index)
	of := fmt.Sprintf("%s command %d", step, r.ID)
	start := c.step.Started.Add(time.Duration(r.Start))
	name := r.Text
	if len([]rune(name)) > 60 {
		name = string([]rune(name)[:59]) + "…"
	}
	s := c.span(name, of, start, start.Add(time.Duration(r.Duration)))
	parent, ok := c.stage[r.Parent]
	if !ok {
		parent = c.spanID(step)
	}
	s.SetParentSpanID(parent)
	c.stage[r.ID] = s.SpanID()
	a := s.Attributes()
	a.PutStr("process.command_line", r.Text)
	a.PutStr("turnstone.command.kind", r.Kind)
	a.PutStr("turnstone.command.language", r.Language)
	if r.Place != nil {
		a.PutInt("code.line.number", int64(r.Place.Line))
		a.PutInt("code.column.number", int64(r.Place.Column))
	}
	for _, o := range []struct {
		name string
		*turnstone.Range
	}{{"stdout", r.Stdout}, {"stderr", r.Stderr}} {
		if o.Range != nil {
			a.PutInt("turnstone."+o.name+".size", o.To-o.From)
		}
	}
	exit(s, r.ExitCode)
}
