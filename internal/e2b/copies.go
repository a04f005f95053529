package e2b

import (
	"net/http"
	"regexp"
	"strconv"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/server/auth"
)

// maxForks bounds the clones of one moment, as the control API does.
const maxForks = 40

// A forkResult is one clone.
type forkResult struct {
	Sandbox *sandboxAnswer `json:"sandbox,omitempty"`
}

// fork clones a sandbox with its memory.
func (d *Door) fork(w http.ResponseWriter, r *http.Request) error {
	var q struct {
		Timeout *int64 `json:"timeout"`
		Count   *int   `json:"count"`
	}
	if err := body(w, r, &q); err != nil {
		return err
	}
	count := 1
	if q.Count != nil {
		count = *q.Count
	}
	if count < 1 || count > maxForks {
		return bad("a fork has 1 to " + strconv.Itoa(maxForks) + " clones")
	}
	t, err := timeout(q.Timeout, unsaid(r))
	if err != nil {
		return err
	}
	s, _, err := d.own(r)
	if err != nil {
		return err
	}
	p, _ := auth.FromContext(r.Context())
	pair, err := d.o.Key.Client(p.Tenant)
	if err != nil {
		return err
	}
	key, err := idempotency(r.Header)
	if err != nil {
		return err
	}
	m := &v1.ForkSandboxRequest{SandboxId: s.SandboxId, IdempotencyKey: key, Timeout: t}
	for range count {
		m.Clients = append(m.Clients, newClient(pair))
	}
	a, err := d.sandboxes.ForkSandbox(r.Context(), connect.NewRequest(m))
	if err != nil {
		return err
	}
	out := []forkResult{}
	for _, c := range a.Msg.Clones {
		one := d.answerOf(c.Sandbox, p)
		out = append(out, forkResult{&one})
	}
	return answer(w, http.StatusCreated, out)
}

// A snapshotInfo is a kept machine.
type snapshotInfo struct {
	SnapshotID string   `json:"snapshotID"`
	Names      []string `json:"names"`
}

// snapshot keeps the machine of a sandbox, which continues.
func (d *Door) snapshot(w http.ResponseWriter, r *http.Request) error {
	var q memoryBody
	if err := body(w, r, &q); err != nil {
		return err
	}
	if err := q.withMemory(); err != nil {
		return err
	}
	if q.Name != "" {
		return bad("a snapshot of this server has no name beside its ID")
	}
	key, err := idempotency(r.Header)
	if err != nil {
		return err
	}
	s, _, err := d.own(r)
	if err != nil {
		return err
	}
	a, err := d.sandboxes.SnapshotSandbox(r.Context(), connect.NewRequest(&v1.SnapshotSandboxRequest{
		SandboxId: s.SandboxId, IdempotencyKey: key}))
	if err != nil {
		return err
	}
	return answer(w, http.StatusCreated, snapshotInfo{a.Msg.Snapshot.GetSnapshotId(), []string{}})
}

// listSnapshots answers a page of snapshots.
func (d *Door) listSnapshots(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	m := &v1.ListSnapshotsRequest{Page: &v1.Page{Token: q.Get("nextToken"), Size: maxPage}}
	if text := q.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return bad("the limit is not a number from 1")
		}
		m.Page.Size = uint32(min(n, maxPage))
	}
	if q.Get("name") != "" {
		return bad("a snapshot of this server has no name beside its ID")
	}
	out := []snapshotInfo{}
	if m.SandboxId = q.Get("sandboxID"); m.SandboxId != "" && !sandboxForm.MatchString(m.SandboxId) {
		return answer(w, http.StatusOK, out)
	}
	a, err := d.sandboxes.ListSnapshots(r.Context(), connect.NewRequest(m))
	if err != nil {
		return err
	}
	for _, s := range a.Msg.Snapshots {
		out = append(out, snapshotInfo{s.SnapshotId, []string{}})
	}
	if next := a.Msg.NextPageToken; next != "" {
		w.Header().Set(nextHeader, next)
	}
	return answer(w, http.StatusOK, out)
}

var snapshotForm = regexp.MustCompile(`^sn_[0-9a-v]{18}$`)

// deleteSnapshot removes a snapshot, which E2B's clients take for a template.
func (d *Door) deleteSnapshot(w http.ResponseWriter, r *http.Request) error {
	id := r.PathValue("id")
	gone := &statusError{http.StatusNotFound, "template " + clip(id) + " not found"}
	if !snapshotForm.MatchString(id) {
		return gone
	}
	_, err := d.sandboxes.DeleteSnapshot(r.Context(), connect.NewRequest(&v1.DeleteSnapshotRequest{
		SnapshotId: id}))
	if turnstone.KindOf(err) == turnstone.KindNotFound {
		return gone
	}
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
