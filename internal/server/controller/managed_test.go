package controller

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/server/auth"
)

// TestManagedBy: what manages a sandbox is said at its creation, by a caller with the scope alone, and
// can be believed: nothing that others make has it, nor what is made of the sandbox.
func TestManagedBy(t *testing.T) {
	const mine = "kubernetes/c/acme/box/u1"
	w := newWorld(t, "a")
	ctx := t.Context()
	manager := with("acme")
	manager.Scopes = []auth.Scope{"sandboxes:*", auth.SandboxesManage}
	usual := with("acme")
	usual.Scopes = []auth.Scope{"sandboxes:*", "tokens:*"}
	m, u := w.as(manager), w.as(usual)
	forge := func(c *callerClient, by string) error {
		_, err := c.sandboxes.CreateSandbox(ctx, ask(&v1.CreateSandboxRequest{ManagedBy: by, Client: newClient()}))
		return err
	}
	// Before there is one, and with the key of its creation.
	_, err := u.sandboxes.CreateSandbox(ctx, ask(&v1.CreateSandboxRequest{IdempotencyKey: "u1", ManagedBy: mine,
		Client: newClient()}))
	if s := w.fails(err, connect.CodePermissionDenied); !strings.Contains(s.Error(), "sandboxes:manage") ||
		turnstone.HintOf(s) == "" {
		t.Errorf("the refusal is %v, with the hint %q", s, turnstone.HintOf(s))
	}
	for _, bad := range []string{"/", "kubernetes", "kubernetes/", "kubernetes//x", "kubernetes/../x", "k/\n", "K/x",
		"k/" + strings.Repeat("x", 512)} {
		w.fails(forge(m, bad), connect.CodeInvalidArgument)
	}
	_, err = u.server.CreateToken(ctx, ask(&v1.CreateTokenRequest{Name: "more", Scopes: []string{"sandboxes:manage"},
		Ttl: durationpb.New(time.Minute)}))
	w.fails(err, connect.CodePermissionDenied)

	box := w.create(m, &v1.CreateSandboxRequest{IdempotencyKey: "u1", ManagedBy: mine}).Sandbox
	forged := w.create(u, &v1.CreateSandboxRequest{Metadata: map[string]string{"managed_by": mine,
		"kubernetes.uid": "u1"}}).Sandbox
	fork, err := m.sandboxes.ForkSandbox(ctx, ask(&v1.ForkSandboxRequest{SandboxId: box.SandboxId,
		Clients: []*v1.ChannelClient{newClient()}}))
	must(t, err)
	snapshot, err := m.sandboxes.SnapshotSandbox(ctx, ask(&v1.SnapshotSandboxRequest{SandboxId: box.SandboxId}))
	must(t, err)
	copied := w.create(u, &v1.CreateSandboxRequest{Source: &v1.CreateSandboxRequest_SnapshotId{
		SnapshotId: snapshot.Msg.Snapshot.SnapshotId}}).Sandbox
	if box.ManagedBy != mine || forged.ManagedBy+fork.Msg.Clones[0].Sandbox.ManagedBy+copied.ManagedBy != "" {
		t.Errorf("%v, %v, %v, %v", box, forged, fork.Msg, copied)
	}
	list := func(c *callerClient, by string) (ids []string) {
		a, err := c.sandboxes.ListSandboxes(ctx, ask(&v1.ListSandboxesRequest{Filter: &v1.SandboxFilter{ManagedBy: by}}))
		must(t, err)
		for _, s := range a.Msg.Sandboxes {
			ids = append(ids, s.SandboxId)
		}
		return ids
	}
	found := func(when string) {
		t.Helper()
		for _, by := range []string{mine, "kubernetes/c/", "kubernetes/c/acme/box/"} {
			if got := list(m, by); !slices.Equal(got, []string{box.SandboxId}) {
				t.Errorf("%s: %s manages %v", when, by, got)
			}
		}
		if got := list(w.as(with("other")), mine); got != nil {
			t.Errorf("%s: of another tenant %v", when, got)
		}
	}
	found("at first")
	stream, err := u.sandboxes.WatchSandboxes(ctx, ask(&v1.WatchSandboxesRequest{Filter: &v1.SandboxFilter{ManagedBy: mine}}))
	must(t, err)
	if !stream.Receive() || !proto.Equal(stream.Msg().Sandbox, w.state(u, box.SandboxId)) || !stream.Receive() ||
		stream.Msg().Event != v1.WatchEvent_WATCH_EVENT_SYNCED {
		t.Errorf("a watch has %v: %v", stream.Msg(), stream.Err())
	}
	_ = stream.Close()

	// A controller that has lost its records has it from the node.
	w.stop()
	all, err := filepath.Glob(filepath.Join(w.dir, "server.db*"))
	must(t, err)
	for _, path := range all {
		must(t, os.Remove(path))
	}
	w.restart()
	m = w.as(manager)
	found("without records")
}
