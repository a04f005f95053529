package e2b

import (
	"context"
	"net/http"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/e2b/envd"
	"turnstone.dev/turnstone/internal/server/auth"
)

// get describes a sandbox.
func (d *Door) get(w http.ResponseWriter, r *http.Request) error {
	s, f, err := d.own(r)
	if err != nil {
		return err
	}
	p, _ := auth.FromContext(r.Context())
	i := infoOf(s)
	internet := f.Info.Shape.Network
	i.Internet, i.Domain, i.Lifecycle = &internet, d.o.Domain, &lifecycle{OnTimeout: "kill"}
	if mayConnect(p, f.Info.ID) {
		i.DaemonToken = d.o.Key.Daemon(f.Info.ID)
	}
	return answer(w, http.StatusOK, i)
}

// kill ends a sandbox. That of a session leaves its turn, unless this fails: the caller has asked for
// its end.
func (d *Door) kill(w http.ResponseWriter, r *http.Request) error {
	s, f, err := d.own(r)
	if err != nil {
		return err
	}
	del := func() error {
		_, err := d.sandboxes.DeleteSandbox(r.Context(), connect.NewRequest(&v1.DeleteSandboxRequest{
			SandboxId: s.SandboxId}))
		return err
	}
	if err = del(); err != nil && f.Info.Session != nil && r.Context().Err() == nil &&
		turnstone.KindOf(err) != turnstone.KindDenied && turnstone.KindOf(err) != turnstone.KindNotFound {
		d.o.Log.Warn("a sandbox is ended without a turn", "sandbox", s.SandboxId, "error", err)
		if err = f.Discard(r.Context()); err == nil {
			err = del()
		}
	}
	if err != nil && turnstone.KindOf(err) != turnstone.KindNotFound {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// timeoutBody is the body of requests about the time of a sandbox.
type timeoutBody struct {
	Timeout *int64 `json:"timeout"`
}

// setTimeout sets the time to a sandbox's stop, from now.
func (d *Door) setTimeout(w http.ResponseWriter, r *http.Request) error {
	var q timeoutBody
	if err := body(w, r, &q); err != nil {
		return err
	}
	return d.timeoutOf(w, r, q.Timeout)
}

// refresh is setTimeout of older clients.
func (d *Door) refresh(w http.ResponseWriter, r *http.Request) error {
	var q struct {
		Duration *int64 `json:"duration"`
	}
	if err := body(w, r, &q); err != nil {
		return err
	}
	return d.timeoutOf(w, r, q.Duration)
}

func (d *Door) timeoutOf(w http.ResponseWriter, r *http.Request, seconds *int64) error {
	if seconds == nil {
		return bad("the request has no timeout")
	}
	t, err := timeout(seconds, 0)
	if err != nil {
		return err
	}
	s, _, err := d.own(r)
	if err != nil {
		return err
	}
	if err := d.limit(r.Context(), s.SandboxId, t); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (d *Door) limit(ctx context.Context, id string, t *durationpb.Duration) error {
	_, err := d.sandboxes.SetSandboxTimeout(ctx, connect.NewRequest(&v1.SetSandboxTimeoutRequest{
		SandboxId: id, Timeout: t}))
	return err
}

// memoryBody is the body of requests that may ask to lose the memory.
type memoryBody struct {
	Timeout             *int64 `json:"timeout"`
	Memory              *bool  `json:"memory"`
	RequireHealthyGuest *bool  `json:"requireHealthyGuest"`
	AutoPause           *bool  `json:"autoPause"`
	Name                string `json:"name"`
}

// withMemory refuses what would lose the memory of a sandbox.
func (q *memoryBody) withMemory() error {
	if q.Memory != nil && !*q.Memory {
		return bad("a sandbox of this server keeps its memory when it is paused, and cannot begin again " +
			"from its files alone")
	}
	if q.AutoPause != nil && *q.AutoPause {
		return bad("a sandbox of this server is not paused when its time is up")
	}
	return nil
}

// pause keeps the work in a sandbox as a turn of its session, if it has one, and pauses its machine
// with its memory. Its time stops.
func (d *Door) pause(w http.ResponseWriter, r *http.Request) error {
	var q memoryBody
	if err := body(w, r, &q); err != nil {
		return err
	}
	if err := q.withMemory(); err != nil {
		return err
	}
	s, f, err := d.own(r)
	if err != nil {
		return err
	}
	if s.Paused || f.Info.Paused {
		return &statusError{http.StatusConflict, "sandbox " + s.SandboxId + " is already paused"}
	}
	if err := d.keep(r.Context(), s, f); err != nil {
		return err
	}
	_, err = d.sandboxes.PauseSandbox(r.Context(), connect.NewRequest(&v1.PauseSandboxRequest{
		SandboxId: s.SandboxId}))
	if err != nil {
		return err
	}
	if err := d.limit(r.Context(), s.SandboxId, durationpb.New(longest)); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// keep makes the work in a sandbox of a session a turn, if the caller may write the session.
func (d *Door) keep(ctx context.Context, s *v1.Sandbox, f Found) error {
	if f.Info.Session == nil {
		return nil
	}
	p, _ := auth.FromContext(ctx)
	if p.Allow(auth.Request{Scope: auth.SessionsWrite, Session: s.ContextId}) != nil {
		return nil // the turn comes with the end of the sandbox
	}
	return f.Commit(ctx)
}

// resume is connect of older clients, which answers 409 for a sandbox that runs.
func (d *Door) resume(w http.ResponseWriter, r *http.Request) error {
	return d.connectTo(w, r, func(s *v1.Sandbox) error {
		if !s.Paused {
			return &statusError{http.StatusConflict, "sandbox " + s.SandboxId + " is already running"}
		}
		return nil
	})
}

// connect resumes a paused sandbox, and answers how to reach it.
func (d *Door) connect(w http.ResponseWriter, r *http.Request) error {
	return d.connectTo(w, r, func(*v1.Sandbox) error { return nil })
}

func (d *Door) connectTo(w http.ResponseWriter, r *http.Request, may func(*v1.Sandbox) error) error {
	var q memoryBody
	if err := body(w, r, &q); err != nil {
		return err
	}
	if err := q.withMemory(); err != nil {
		return err
	}
	t, err := timeout(q.Timeout, unsaid(r))
	if err != nil {
		return err
	}
	s, f, err := d.own(r)
	if err != nil {
		return err
	}
	if err := may(s); err != nil {
		return err
	}
	p, _ := auth.FromContext(r.Context())
	if !mayConnect(p, f.Info.ID) {
		return p.Allow(auth.Request{Scope: auth.SandboxesConnect, Sandbox: f.Info.ID})
	}
	status := http.StatusOK
	switch {
	case f.Info.Paused:
		status = http.StatusCreated
		_, err := d.sandboxes.ResumeSandbox(r.Context(), connect.NewRequest(&v1.ResumeSandboxRequest{
			SandboxId: s.SandboxId}))
		if err != nil {
			return err
		}
		err = d.limit(r.Context(), s.SandboxId, t)
		if err != nil {
			return err
		}
	case f.Info.Expires != nil && q.Timeout != nil && time.Now().Add(t.AsDuration()).After(*f.Info.Expires):
		if err := d.limit(r.Context(), s.SandboxId, t); err != nil {
			return err
		}
	}
	return answer(w, status, d.answerOf(s, p))
}

// A metric is a measurement of a sandbox.
type metric struct {
	Timestamp time.Time `json:"timestamp"`
	Unix      int64     `json:"timestampUnix"`
	CPUs      uint32    `json:"cpuCount"`
	CPUUsed   float64   `json:"cpuUsedPct"`
	MemUsed   int64     `json:"memUsed"`
	MemTotal  int64     `json:"memTotal"`
	MemCache  int64     `json:"memCache"`
	DiskUsed  int64     `json:"diskUsed"`
	DiskTotal int64     `json:"diskTotal"`
}

// metrics answers one measurement, of now. The use of the CPUs is the average since the start.
func (d *Door) metrics(w http.ResponseWriter, r *http.Request) error {
	s, f, err := d.own(r)
	if err != nil {
		return err
	}
	p, _ := auth.FromContext(r.Context())
	if !f.runs() || !mayConnect(p, f.Info.ID) {
		return answer(w, http.StatusOK, []metric{})
	}
	used, err := envd.Measure(envd.NewContext(r.Context(), boxOf(f)))
	if err != nil {
		return err
	}
	now := time.Now()
	m := metric{Timestamp: now.UTC(), Unix: now.Unix(), CPUs: s.GetMachine().GetCpus(),
		MemUsed: used.MemoryTotal - used.MemoryAvailable, MemTotal: used.MemoryTotal,
		DiskUsed: used.DiskTotal - used.DiskFree, DiskTotal: used.DiskTotal}
	if life := now.Sub(s.GetCreated().AsTime()); life > 0 && m.CPUs > 0 {
		m.CPUUsed = 100 * s.GetUsed().GetCpu().AsDuration().Seconds() / life.Seconds() / float64(m.CPUs)
	}
	return answer(w, http.StatusOK, []metric{m})
}
