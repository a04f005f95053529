package controller

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/server/audit"
)

// lines closes the audit log of a world, and returns its entries, without those of the world itself.
func (w *world) lines() (all []audit.Entry) {
	w.Helper()
	must(w, w.audit.Close())
	_, err := audit.Read(filepath.Join(w.dir, "audit"), "", func(e audit.Entry) error {
		all = append(all, e)
		return nil
	})
	must(w, err)
	return all
}

// auditText is the text of the log.
func (w *world) auditText() string {
	w.Helper()
	names, err := filepath.Glob(filepath.Join(w.dir, "audit", "*.jsonl"))
	must(w, err)
	var text strings.Builder
	for _, name := range names {
		b, err := os.ReadFile(name)
		must(w, err)
		text.Write(b)
	}
	return text.String()
}

// TestAudit: calls that change something have a line each with who, what and the outcome; refused
// ones are there, and counted; reads are not; and no line has content or a token.
func TestAudit(t *testing.T) {
	w := newWorld(t, "n1")
	c := w.as(with("acme"))
	sb := w.create(c, &v1.CreateSandboxRequest{IdempotencyKey: "k", Name: "box",
		Env: map[string]string{"SECRET": "content-marker"}, Metadata: map[string]string{"a": "content-marker"}})
	id := sb.Sandbox.SandboxId
	tk := w.startTurn(c, "t", "work").Turn.TicketId
	made, err := c.server.CreateToken(t.Context(), ask(&v1.CreateTokenRequest{Name: "ci",
		Ttl: durationpb.New(time.Minute)}))
	must(t, err)
	_, err = c.server.RevokeToken(t.Context(), ask(&v1.RevokeTokenRequest{TokenId: made.Msg.Secret[:200]}))
	w.fails(err, connect.CodeNotFound)
	_, err = c.sandboxes.GetSandbox(t.Context(), ask(&v1.GetSandboxRequest{SandboxId: id}))
	must(t, err)
	_, err = c.sandboxes.DeleteSandbox(t.Context(), ask(&v1.DeleteSandboxRequest{SandboxId: id}))
	must(t, err)
	for range 50 {
		_, err = w.bearer("nonsense").turns.GetUsage(t.Context(), ask(&v1.GetUsageRequest{}))
		w.fails(err, connect.CodeUnauthenticated)
	}
	limited := with("acme")
	limited.Subject, limited.Scopes = "reader", limited.Scopes[:1]
	_, err = w.as(limited).sandboxes.DeleteSandbox(t.Context(), ask(&v1.DeleteSandboxRequest{SandboxId: id}))
	w.fails(err, connect.CodePermissionDenied)
	w.stop()

	var got []string
	counted := 0
	for _, e := range w.lines() {
		got = append(got, strings.TrimSpace(strings.Join([]string{e.Method, e.Outcome, e.Tenant, e.Subject, e.Object},
			" ")))
		counted += e.Count
		if e.Tenant != "" && (e.Token == "" || e.Issuer != serverName) {
			t.Errorf("%+v", e)
		}
	}
	want := []string{"SandboxService/CreateSandbox done acme ci " + id,
		"TurnService/StartTurn done acme ci " + tk,
		"ServerService/CreateToken done acme ci " + made.Msg.Token.TokenId,
		"ServerService/RevokeToken failed acme ci",
		"SandboxService/DeleteSandbox done acme ci " + id,
		"TurnService/GetUsage refused",
		"SandboxService/DeleteSandbox refused acme reader",
		"TurnService/GetUsage refused"}
	if strings.Join(got, "\n") != strings.Join(want, "\n") || counted != 49 {
		t.Errorf("the log has\n%s\nand %d repetitions; want\n%s", strings.Join(got, "\n"), counted,
			strings.Join(want, "\n"))
	}
	if text := w.auditText(); strings.Contains(text, "content-marker") ||
		strings.Contains(text, made.Msg.Secret[:200]) || strings.Contains(text, c.token) {
		t.Errorf("the log has content:\n%s", text)
	}
}

// TestAuditUnproven: a call that a node answers with its introduction is no denial, and the log says
// what it was. The repetition is a line of its own.
func TestAuditUnproven(t *testing.T) {
	w := newWorld(t, "n1")
	c := w.as(with("acme"))
	w.nodes[0].hook(func(_ context.Context, method, _ string) error {
		if method != "CreateSandbox" {
			return nil
		}
		return &api.Status{Reason: api.Unproven, Err: turnstone.Errorf("client.prove",
			turnstone.KindDenied, "client_public_key", "is not proved")}
	}, nil)
	_, err := c.sandboxes.CreateSandbox(t.Context(), ask(&v1.CreateSandboxRequest{IdempotencyKey: "k",
		Client: newClient()}))
	w.fails(err, connect.CodePermissionDenied)
	w.nodes[0].hook(nil, nil)
	w.create(c, &v1.CreateSandboxRequest{IdempotencyKey: "k"})
	w.stop()
	all := w.lines()
	if len(all) != 2 || all[0].Outcome != audit.Refused || all[0].Kind != "unproven" ||
		all[1].Outcome != audit.Done {
		t.Errorf("%+v", all)
	}
}

// TestAuditFull: while no line can be written, nothing is changed, and all else is answered.
func TestAuditFull(t *testing.T) {
	w := newWorld(t, "n1")
	c := w.as(with("acme"))
	must(t, w.audit.Close()) // as good as a full disk for callers
	_, err := c.sandboxes.CreateSandbox(t.Context(), ask(&v1.CreateSandboxRequest{IdempotencyKey: "k",
		Client: newClient()}))
	w.fails(err, connect.CodeUnavailable)
	list, err := c.sandboxes.ListSandboxes(t.Context(), ask(&v1.ListSandboxesRequest{}))
	must(t, err)
	if len(list.Msg.Sandboxes) != 0 || w.nodes[0].asked("CreateSandbox") != 0 {
		t.Errorf("there are %d sandboxes", len(list.Msg.Sandboxes))
	}
}

// TestAuditGateway: what a gateway tells of an address is in the line.
func TestAuditGateway(t *testing.T) {
	w := newWorld(t, "n1")
	c := w.as(with("acme"))
	r := ask(&v1.CreateSessionRequest{IdempotencyKey: "k", Name: "work", Client: newClient()})
	r.Header().Set("Turnstone-Caller", "192.0.2.7")
	_, err := c.sessions.CreateSession(t.Context(), r)
	must(t, err)
	w.stop()
	all := w.lines()
	if len(all) != 1 || all[0].Address != "192.0.2.7" || time.Since(all[0].Time) > time.Hour {
		t.Errorf("%+v", all)
	}
}

// asked returns how often a method was called.
func (n *fakeNode) asked(method string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.calls[method]
}
