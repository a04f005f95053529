package control

import (
	"context"
	"errors"
	"os"
	"time"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/internal/server/node/kept"
	"turnstone.dev/turnstone/internal/server/node/tenants"
	"turnstone.dev/turnstone/sandboxes"
)

// maxSnapshots bounds the snapshots of a tenant.
const maxSnapshots = 100

// ForkSandbox clones a sandbox, for clients that may open its channel. The same IDs with the same
// request answer the same clones; missing ones are made.
func (s *Service) ForkSandbox(ctx context.Context,
	r *connect.Request[v1.NodeServiceForkSandboxRequest]) (
	*connect.Response[v1.ForkSandboxResponse], error) {
	p, q, ids := r.Msg.Principal, r.Msg.Request, r.Msg.SandboxIds
	callers := make([]caller, len(q.Clients))
	for n, c := range q.Clients {
		var err error
		if callers[n], err = s.caller(ctx, p, q, c); err != nil {
			return nil, err
		}
	}
	st, i, err := s.sandbox(p, q.SandboxId)
	if err != nil {
		return nil, err
	}
	owner := ""
	for n, c := range q.Clients {
		may, err := s.mayOpen(ctx, st, callers[n], i, c)
		if err != nil {
			return nil, err
		}
		owner = may.owner
	}
	release, err := s.busy.acquire(ctx, ids[0])
	if err != nil {
		return nil, err
	}
	defer release()
	parent, err := s.record(st, i.ID)
	if err != nil {
		return nil, err
	}
	clones, missing := make([]*sandboxes.Info, len(ids)), []int{}
	records := make([]*kept.Sandbox, len(ids))
	for n, id := range ids {
		records[n] = cloneRecord(parent, turnstone.SandboxID(id), q, n, owner)
		if clones[n], err = s.created(st, records[n]); err != nil {
			return nil, err
		}
		if clones[n] == nil {
			missing = append(missing, n)
		}
	}
	if len(missing) > 0 {
		if err := s.fork(ctx, st, i, q, records, clones, missing); err != nil {
			return nil, err
		}
	}
	out := &v1.ForkSandboxResponse{}
	for n := range ids {
		one, err := s.answer(ctx, st, *clones[n], q.Clients[n], p, owner)
		if err != nil {
			return nil, err
		}
		out.Clones = append(out.Clones, one)
	}
	return connect.NewResponse(out), nil
}

// cloneRecord returns the record of a clone: its client is the one that asked, and it belongs to the
// session of its parent.
func cloneRecord(parent *kept.Sandbox, id turnstone.SandboxID, q *v1.ForkSandboxRequest, n int,
	owner string) *kept.Sandbox {
	r := &kept.Sandbox{ID: id, Request: api.RequestDigest(q)}
	r.Owner = owner
	copy(r.Client[:], q.Clients[n].ClientPublicKey)
	if parent != nil {
		r.Context, r.Session, r.From = parent.Context, parent.Session, parent.From
	}
	return r
}

// fork makes the missing clones of a sandbox. If it fails, none of them remains.
func (s *Service) fork(ctx context.Context, st *tenants.State, parent sandboxes.Info,
	q *v1.ForkSandboxRequest, records []*kept.Sandbox, clones []*sandboxes.Info,
	missing []int) (err error) {
	f := sandboxes.Fork{Count: len(missing), Secrets: q.Secrets,
		TTL: s.lifetime(q.Timeout.AsDuration())}
	var ids []string
	for _, n := range missing {
		f.IDs = append(f.IDs, records[n].ID)
		if len(q.Names) > 0 {
			f.Names = append(f.Names, q.Names[n])
		}
		ids = append(ids, string(records[n].ID))
	}
	free, err := s.take(turnstone.Machine{CPUs: parent.Shape.CPUs, Memory: parent.Shape.Memory,
		Disk: parent.Shape.Disk}, ids...)
	if err != nil {
		return err
	}
	defer free()
	defer func() {
		if err == nil {
			return
		}
		for _, n := range missing {
			id := records[n].ID
			if gone := st.Sandboxes.Remove(context.WithoutCancel(ctx), id); gone == nil ||
				turnstone.KindOf(gone) == turnstone.KindNotFound {
				s.board.drop(name{kindSandbox, st.Tenant, string(id)})
				err = errors.Join(err, s.forget(st, id))
			}
		}
	}()
	for _, n := range missing {
		if err := s.save(st, records[n]); err != nil {
			return err
		}
	}
	made, err := st.Sandboxes.Fork(ctx, parent.ID, f, nil)
	if err != nil {
		return exhausted(err)
	}
	for _, i := range made {
		for _, n := range missing {
			if records[n].ID == i.ID {
				clones[n] = &i
			}
		}
		s.noteSandbox(st, i)
		s.followSandbox(st, i.ID)
	}
	return nil
}

// snapshot returns a snapshot of the principal's tenant, and the folder that has it.
func (s *Service) snapshot(p *v1.Principal, id string) (string, *kept.Snapshot, error) {
	st, err := s.find(p, kindSnapshot, id)
	if err != nil {
		return "", nil, err
	}
	dir, err := st.Folder(snapshotFolder)
	if err != nil {
		return "", nil, err
	}
	k, err := kept.LoadSnapshot(dir, id)
	if err == nil && k == nil {
		err = missing(kindSnapshot, id)
	}
	return dir, k, err
}

func snapshotOf(k *kept.Snapshot) *v1.Snapshot {
	return &v1.Snapshot{SnapshotId: k.ID, SandboxId: string(k.Sandbox), Template: k.Image,
		Substrate: k.Substrate, Size: uint64(k.Size), Created: stamp(k.Created),
		Version: k.Program}
}

// SnapshotSandbox keeps a machine. The same ID with the same request answers the same snapshot.
func (s *Service) SnapshotSandbox(ctx context.Context,
	r *connect.Request[v1.NodeServiceSnapshotSandboxRequest]) (
	*connect.Response[v1.SnapshotSandboxResponse], error) {
	p, q, id := r.Msg.Principal, r.Msg.Request, r.Msg.SnapshotId
	who, err := s.caller(ctx, p, q, q.Client)
	if err != nil {
		return nil, err
	}
	release, err := s.busy.acquire(ctx, id)
	if err != nil {
		return nil, err
	}
	defer release()
	digest := api.RequestDigest(q)
	_, k, err := s.snapshot(p, id)
	switch {
	case err == nil && !who.holds(k.Holder) && !who.admin(auth.SandboxesAdmin):
		return nil, who.refuse("snapshot.keep", kindSnapshot, id, auth.SandboxesAdmin)
	case err == nil && k.Request != digest:
		return nil, turnstone.Errorf("snapshot.keep", turnstone.KindInvalid, "snapshot "+id,
			"exists, and another request has made it")
	case turnstone.KindOf(err) == turnstone.KindNotFound:
		k, err = s.keep(ctx, who, q, id, digest)
	}
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.SnapshotSandboxResponse{Snapshot: snapshotOf(k)}), nil
}

// keep takes a snapshot of a sandbox.
func (s *Service) keep(ctx context.Context, who caller, q *v1.SnapshotSandboxRequest, id string,
	digest turnstone.Digest) (*kept.Snapshot, error) {
	st, i, err := s.sandbox(who.principal, q.SandboxId)
	if err != nil {
		return nil, err
	}
	if err := s.mayControl("snapshot.keep", who, st, i.ID); err != nil {
		return nil, err
	}
	if i.Network != nil && len(i.Network.Headers) > 0 {
		return nil, turnstone.Errorf("snapshot.keep", turnstone.KindInvalid, "sandbox "+q.SandboxId,
			"has secret headers, whose values a snapshot would not have")
	}
	dir, err := st.Folder(snapshotFolder)
	if err != nil {
		return nil, err
	}
	if all, err := kept.Snapshots(dir); err != nil {
		return nil, err
	} else if len(all) >= maxSnapshots {
		return nil, turnstone.Errorf("snapshot.keep", turnstone.KindExhausted, "the tenant",
			"has %d snapshots, and may have no more", len(all)).WithHint("delete one first")
	}
	if err := st.Room(); err != nil {
		return nil, exhausted(err)
	}
	k := &kept.Snapshot{ID: id, Request: digest, Sandbox: i.ID, Image: i.Image, Root: i.Root,
		Shape: i.Shape, Network: i.Network, Substrate: i.Substrate, Secrets: i.Secrets,
		Created: time.Now().UTC(), Program: i.Version}
	rec, err := s.record(st, i.ID)
	if err != nil {
		return nil, err
	}
	if rec != nil {
		k.Holder = rec.Holder
	}
	err = k.Keep(ctx, dir, func(ctx context.Context, machine string) error {
		c, err := st.Sandboxes.Control(ctx, i.ID)
		if err != nil {
			return hide(err, kindSandbox, q.SandboxId)
		}
		defer func() { _ = c.Close() }()
		return c.Snapshot(ctx, machine, sandboxes.SnapshotOptions{Secrets: q.Secrets})
	})
	if err != nil {
		return nil, err
	}
	s.lookSnapshots(st)
	return k, nil
}

// DeleteSnapshot removes a snapshot; its sandboxes stay.
func (s *Service) DeleteSnapshot(ctx context.Context,
	r *connect.Request[v1.NodeServiceDeleteSnapshotRequest]) (
	*connect.Response[v1.DeleteSnapshotResponse], error) {
	id := r.Msg.Request.SnapshotId
	who, err := s.caller(ctx, r.Msg.Principal, r.Msg.Request, r.Msg.Request.Client)
	if err != nil {
		return nil, err
	}
	release, err := s.busy.acquire(ctx, id)
	if err != nil {
		return nil, err
	}
	defer release()
	dir, k, err := s.snapshot(r.Msg.Principal, id)
	if err != nil {
		return nil, err
	}
	if !who.holds(k.Holder) && !who.admin(auth.SandboxesAdmin) {
		return nil, who.refuse("snapshot.delete", kindSnapshot, id, auth.SandboxesAdmin)
	}
	if err := k.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	s.board.drop(name{kindSnapshot, r.Msg.Principal.Tenant, id})
	return connect.NewResponse(&v1.DeleteSnapshotResponse{}), nil
}
