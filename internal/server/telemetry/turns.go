package telemetry

import (
	"context"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/pg"
	"turnstone.dev/turnstone/internal/server/node/turns"
	"turnstone.dev/turnstone/internal/sqlitefault"
)

// Turns returns an Executor that measures the turns of a tenant that x runs. The span of a turn
// belongs to the trail of its context, and has one for each phase and for each of the first steps.
func (t *Telemetry) Turns(tenant string, x turns.Executor) turns.Executor {
	r := &runner{t, tenant, x}
	if x, ok := x.(turns.Resumer); ok {
		return &resumer{r, x}
	}
	return r
}

// A resumer is a runner whose Executor also resumes turns.
type resumer struct {
	*runner
	turns.Resumer
}

// ResumeTurn implements turns.Resumer.
func (r *resumer) ResumeTurn(ctx context.Context, q executor.ResumeTurnRequest,
	o executor.Observer) (*turnstone.TurnReport, error) {
	return r.measure(ctx, func(ctx context.Context) (*turnstone.TurnReport, error) {
		return r.Resumer.ResumeTurn(ctx, q, o)
	})
}

type runner struct {
	t      *Telemetry
	tenant string
	turns.Executor
}

// Run implements turns.Executor.
func (r *runner) Run(ctx context.Context, q executor.Request, o executor.Observer) (
	*turnstone.TurnReport, error) {
	return r.measure(ctx, func(ctx context.Context) (*turnstone.TurnReport, error) {
		return r.Executor.Run(ctx, q, o)
	})
}

// Times implements turns.Executor.
func (r *runner) Times(ctx context.Context, q executor.Request, n int, o executor.Observer) (
	*turnstone.TurnReport, error) {
	return r.measure(ctx, func(ctx context.Context) (*turnstone.TurnReport, error) {
		return r.Executor.Times(ctx, q, n, o)
	})
}

func (r *runner) measure(ctx context.Context,
	run func(context.Context) (*turnstone.TurnReport, error)) (report *turnstone.TurnReport, err error) {
	label := r.t.tenant(r.tenant)
	r.t.meters.add(turnsRunning, 1, label)
	began := time.Now()
	ctx, span := r.t.tracer.Start(ctx, "turn", trace.WithTimestamp(began))
	defer func() {
		result := "none"
		if report != nil {
			result = string(report.Result)
		}
		r.t.meters.add(turnsRunning, -1, label)
		r.t.meters.add(turnsEnded, 1, result, label)
		r.t.meters.took(turnSeconds, time.Since(began), result)
		if report != nil {
			r.t.phases(report)
		}
		r.end(ctx, span, began, result, report)
	}()
	return run(ctx)
}

func (t *Telemetry) phases(report *turnstone.TurnReport) {
	for _, p := range report.Phases {
		name := p.Name
		if !slices.Contains(phases, name) {
			name = other
		}
		t.meters.took(phaseSeconds, time.Duration(p.Took), name)
	}
}

// maxSteps bounds the spans of a turn's steps.
const maxSteps = 100

// end ends the span of a turn with those of its phases, which follow each other.
func (r *runner) end(ctx context.Context, span trace.Span, began time.Time, result string,
	report *turnstone.TurnReport) {
	defer span.End()
	if !span.IsRecording() {
		return
	}
	span.SetAttributes(attribute.String("turnstone.tenant", r.tenant),
		attribute.String("turnstone.result", result))
	if result != string(turnstone.ResultPassed) {
		span.SetStatus(codes.Error, "")
	}
	if report == nil {
		return
	}
	span.SetAttributes(attribute.String("turnstone.turn", string(report.ID)),
		attribute.Int("turnstone.number", report.Number),
		attribute.String("turnstone.substrate", report.Substrate),
		attribute.String("turnstone.kind", string(report.Kind)))
	at := began
	for _, p := range report.Phases {
		to := at.Add(time.Duration(p.Took))
		in, phase := r.t.tracer.Start(ctx, "phase "+p.Name, trace.WithTimestamp(at))
		if p.Name == "steps" {
			r.steps(in, at, report.Steps)
		}
		phase.End(trace.WithTimestamp(to))
		at = to
	}
}

// steps makes spans of steps, by their numbers: their names are content.
func (r *runner) steps(ctx context.Context, at time.Time, all []turnstone.StepReport) {
	for i, s := range all[:min(len(all), maxSteps)] {
		to := at.Add(time.Duration(s.Millis) * time.Millisecond)
		_, step := r.t.tracer.Start(ctx, "step", trace.WithTimestamp(at), trace.WithAttributes(
			attribute.Int("turnstone.step", i+1), attribute.String("turnstone.status", string(s.Status))))
		step.End(trace.WithTimestamp(to))
		at = to
	}
}

// Handshook notes a handshake of a channel that ended at the node: it implements node.Watch.
func (t *Telemetry) Handshook(ctx context.Context, began time.Time, err error) {
	result := "ok"
	if err != nil {
		result = "refused"
		if f := channel.FaultOf(err); slices.Contains(faults, f) {
			result = string(f)
		}
	}
	t.meters.add(handshakes, 1, result)
	if err == nil {
		t.meters.took(handshake, time.Since(began))
	}
	_, span := t.tracer.Start(ctx, "channel handshake", trace.WithTimestamp(began),
		trace.WithAttributes(attribute.String("turnstone.result", result)))
	span.End()
}

// faults are the manipulations that have a label: a peer's word is none.
var faults = []channel.Fault{channel.FaultForged, channel.FaultUntrusted, channel.FaultReplayed,
	channel.FaultExpired, channel.FaultSpliced, channel.FaultWidened, channel.FaultKeySwapped,
	channel.FaultWeakKey, channel.FaultAltered, channel.FaultRepeated, channel.FaultReordered,
	channel.FaultReflected, channel.FaultTruncated}

// Wrote notes a write to the records: it implements records.Watch.
func (t *Telemetry) Wrote(waited, took time.Duration, err error) {
	result := "failed"
	switch kind := turnstone.KindOf(err); {
	case err == nil:
		result = "ok"
	case sqlitefault.Busy(err), pg.Busy(err), pg.Conflict(err):
		result = "busy"
	case kind == turnstone.KindExhausted:
		result = "full"
	case kind == turnstone.KindIntegrity:
		result = "damaged"
	case kind == turnstone.KindNotFound || kind == turnstone.KindInvalid:
		result = "refused"
	}
	t.meters.add(writes, 1, result)
	t.meters.took(waitSeconds, waited)
	t.meters.took(writeSeconds, took)
}
