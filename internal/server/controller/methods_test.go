package controller

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/server/auth"

	"connectrpc.com/connect"
)

// A target names one object of each kind.
type target struct{ sandbox, turn, session, snapshot, token string }

var nowhere = target{"sb_000000000000000000", "tk_000000000000000000", "s_000000000000000000",
	"sn_000000000000000000", "tk_" + strings.Repeat("a", 26)}

// requests has a valid request for each method of the API for callers. Methods whose request names
// an object name the one of the target.
var requests = map[string]struct {
	make  func(target) proto.Message
	names string // the kind of object: "", "sandbox", "turn", "session", "snapshot", "token"
}{
	"SandboxService/CreateSandbox": {func(o target) proto.Message {
		return &v1.CreateSandboxRequest{Client: fixedClient(),
			Source: &v1.CreateSandboxRequest_SnapshotId{SnapshotId: o.snapshot}}
	}, "snapshot"},
	"SandboxService/GetSandbox": {func(o target) proto.Message {
		return &v1.GetSandboxRequest{SandboxId: o.sandbox}
	}, "sandbox"},
	"SandboxService/ListSandboxes":  {func(target) proto.Message { return &v1.ListSandboxesRequest{} }, ""},
	"SandboxService/WatchSandboxes": {func(target) proto.Message { return &v1.WatchSandboxesRequest{} }, ""},
	"SandboxService/ConnectSandbox": {func(o target) proto.Message {
		return &v1.ConnectSandboxRequest{SandboxId: o.sandbox, Client: fixedClient()}
	}, "sandbox"},
	"SandboxService/DeleteSandbox": {func(o target) proto.Message {
		return &v1.DeleteSandboxRequest{SandboxId: o.sandbox}
	}, "sandbox"},
	"SandboxService/PauseSandbox": {func(o target) proto.Message {
		return &v1.PauseSandboxRequest{SandboxId: o.sandbox}
	}, "sandbox"},
	"SandboxService/ResumeSandbox": {func(o target) proto.Message {
		return &v1.ResumeSandboxRequest{SandboxId: o.sandbox}
	}, "sandbox"},
	"SandboxService/ForkSandbox": {func(o target) proto.Message {
		return &v1.ForkSandboxRequest{SandboxId: o.sandbox,
			Clients: []*v1.ChannelClient{fixedClient()}}
	}, "sandbox"},
	"SandboxService/SnapshotSandbox": {func(o target) proto.Message {
		return &v1.SnapshotSandboxRequest{SandboxId: o.sandbox}
	}, "sandbox"},
	"SandboxService/ListSnapshots": {func(target) proto.Message { return &v1.ListSnapshotsRequest{} }, ""},
	"SandboxService/DeleteSnapshot": {func(o target) proto.Message {
		return &v1.DeleteSnapshotRequest{SnapshotId: o.snapshot}
	}, "snapshot"},
	"SandboxService/SetSandboxTimeout": {func(o target) proto.Message {
		return &v1.SetSandboxTimeoutRequest{SandboxId: o.sandbox,
			Timeout: durationpb.New(time.Minute)}
	}, "sandbox"},
	"SandboxService/ExposePort": {func(o target) proto.Message {
		return &v1.ExposePortRequest{SandboxId: o.sandbox, Port: 80}
	}, "sandbox"},
	"TurnService/StartTurn": {func(o target) proto.Message {
		return &v1.StartTurnRequest{IdempotencyKey: "key", Session: o.session, Client: fixedClient()}
	}, "session"},
	"TurnService/GetTurn": {func(o target) proto.Message {
		return &v1.GetTurnRequest{TicketId: o.turn}
	}, "turn"},
	"TurnService/ListTurns":  {func(target) proto.Message { return &v1.ListTurnsRequest{} }, ""},
	"TurnService/WatchTurns": {func(target) proto.Message { return &v1.WatchTurnsRequest{} }, ""},
	"TurnService/ConnectTurn": {func(o target) proto.Message {
		return &v1.ConnectTurnRequest{TicketId: o.turn, Client: fixedClient()}
	}, "turn"},
	"TurnService/CancelTurn": {func(o target) proto.Message {
		return &v1.CancelTurnRequest{TicketId: o.turn}
	}, "turn"},
	"TurnService/GetUsage": {func(target) proto.Message { return &v1.GetUsageRequest{} }, ""},
	"SessionService/CreateSession": {func(target) proto.Message {
		return &v1.CreateSessionRequest{Client: fixedClient()}
	}, ""},
	"SessionService/GetSession": {func(o target) proto.Message {
		return &v1.GetSessionRequest{Session: o.session}
	}, "session"},
	"SessionService/ListSessions":  {func(target) proto.Message { return &v1.ListSessionsRequest{} }, ""},
	"SessionService/WatchSessions": {func(target) proto.Message { return &v1.WatchSessionsRequest{} }, ""},
	"SessionService/ConnectSession": {func(o target) proto.Message {
		return &v1.ConnectSessionRequest{Session: o.session, Client: fixedClient()}
	}, "session"},
	"SessionService/ConnectNode": {func(target) proto.Message {
		return &v1.ConnectNodeRequest{Client: fixedClient()}
	}, ""},
	"SessionService/RenameSession": {func(o target) proto.Message {
		return &v1.RenameSessionRequest{Session: o.session, NewName: "other"}
	}, "session"},
	"SessionService/DeleteSession": {func(o target) proto.Message {
		return &v1.DeleteSessionRequest{Session: o.session}
	}, "session"},
	"TemplateService/GetTemplate": {func(target) proto.Message {
		return &v1.GetTemplateRequest{Template: "base"}
	}, ""},
	"TemplateService/ListTemplates":  {func(target) proto.Message { return &v1.ListTemplatesRequest{} }, ""},
	"TemplateService/WatchTemplates": {func(target) proto.Message { return &v1.WatchTemplatesRequest{} }, ""},
	"TemplateService/BuildTemplate": {func(target) proto.Message {
		return &v1.BuildTemplateRequest{Template: "base"}
	}, ""},
	"TemplateService/DeleteTemplate": {func(target) proto.Message {
		return &v1.DeleteTemplateRequest{Template: "nothing"}
	}, ""},
	"TemplateService/ConnectTemplates": {func(target) proto.Message {
		return &v1.ConnectTemplatesRequest{Client: fixedClient()}
	}, ""},
	"PoolService/SetPool": {func(target) proto.Message {
		return &v1.SetPoolRequest{Name: "p", Ttl: durationpb.New(time.Minute)}
	}, ""},
	"ServerService/ListNodes":  {func(target) proto.Message { return &v1.ListNodesRequest{} }, ""},
	"ServerService/RemoveNode": {func(target) proto.Message { return &v1.RemoveNodeRequest{Name: "none"} }, ""},
	"ServerService/CreateToken": {func(target) proto.Message {
		return &v1.CreateTokenRequest{Name: "x", Ttl: durationpb.New(time.Minute)}
	}, ""},
	"ServerService/ListTokens": {func(target) proto.Message { return &v1.ListTokensRequest{} }, ""},
	"ServerService/RevokeToken": {func(o target) proto.Message {
		return &v1.RevokeTokenRequest{TokenId: o.token}
	}, "token"},
}

func fixedClient() *v1.ChannelClient {
	return &v1.ChannelClient{ClientPublicKey: bytes.Repeat([]byte{7}, 32),
		Nonce: bytes.Repeat([]byte{9}, 32)}
}

// forCallers lists the methods of the services for callers.
func forCallers(t *testing.T) (all []protoreflect.MethodDescriptor) {
	for _, file := range []protoreflect.FileDescriptor{v1.File_turnstone_v1_sandbox_proto,
		v1.File_turnstone_v1_turn_proto, v1.File_turnstone_v1_session_proto,
		v1.File_turnstone_v1_template_proto, v1.File_turnstone_v1_server_proto,
		v1.File_turnstone_v1_pool_proto} {
		for i := range file.Services().Len() {
			for j := range file.Services().Get(i).Methods().Len() {
				m := file.Services().Get(i).Methods().Get(j)
				if _, ok := requests[short(m)]; !ok {
					t.Errorf("%s has no row in the table", short(m))
					continue
				}
				all = append(all, m)
			}
		}
	}
	if len(all) != len(requests) {
		t.Errorf("the table has %d rows for %d methods", len(requests), len(all))
	}
	return all
}

func short(m protoreflect.MethodDescriptor) string {
	return string(m.Parent().Name()) + "/" + string(m.Name())
}

// An outcome is the answer to a raw call. Of a stream it is the first message, or the error.
type outcome struct {
	code   string // "" or a Connect code
	text   string // of the error, with its details
	reason string
}

// raw calls a method with a body, in Connect's JSON.
func (w *world) raw(m protoreflect.MethodDescriptor, token string, body []byte) outcome {
	w.Helper()
	kind := "application/json"
	if m.IsStreamingServer() {
		kind = "application/connect+json"
		head := make([]byte, 5)
		binary.BigEndian.PutUint32(head[1:], uint32(len(body)))
		body = append(head, body...)
	}
	r, err := http.NewRequestWithContext(w.Context(), http.MethodPost,
		w.http.URL+"/turnstone.v1."+short(m), bytes.NewReader(body))
	must(w, err)
	r.Header.Set("Content-Type", kind)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := w.clients.Do(r)
	must(w, err)
	defer func() { _ = resp.Body.Close() }()
	var text []byte
	if m.IsStreamingServer() {
		head := make([]byte, 5)
		_, err := io.ReadFull(resp.Body, head)
		must(w, err)
		text = make([]byte, binary.BigEndian.Uint32(head[1:]))
		_, err = io.ReadFull(resp.Body, text)
		must(w, err)
		var end struct{ Error json.RawMessage }
		if json.Unmarshal(text, &end) == nil && head[0]&2 != 0 {
			text = end.Error
		} else {
			return outcome{}
		}
	} else if text, err = io.ReadAll(resp.Body); err != nil || resp.StatusCode == http.StatusOK {
		must(w, err)
		return outcome{}
	}
	var e struct {
		Code    string
		Message string
		Details []struct{ Value string }
	}
	must(w, json.Unmarshal(text, &e))
	out := outcome{code: e.Code, text: e.Message}
	if len(e.Details) == 0 && strings.HasPrefix(e.Message, "unmarshal message") {
		return out // connect-go says it, before a handler runs
	}
	if len(e.Details) != 1 {
		w.Fatalf("%s has no detail: %s", short(m), text)
	}
	b, err := base64.RawStdEncoding.DecodeString(e.Details[0].Value)
	must(w, err)
	d := &v1.Error{}
	must(w, proto.Unmarshal(b, d))
	out.reason = d.Reason
	out.text += " " + fmt.Sprint(d.Op, d.Kind, d.Subject, d.Hint, d.Cause, d.Retryable, d.RetryAfter)
	return out
}

func body(t testing.TB, m proto.Message) []byte {
	b, err := protojson.Marshal(m)
	must(t, err)
	return b
}

// without returns all scopes except those of need.
func without(need auth.Scope) (all []auth.Scope) {
	for _, s := range auth.Scopes() {
		if s != need {
			all = append(all, s)
		}
	}
	return all
}

// TestEveryMethod calls each method of the descriptor as callers who may not.
func TestEveryMethod(t *testing.T) {
	w := newWorld(t, "a")
	mine := w.as(with("acme"))
	have := w.populate(mine)
	foreign := with("other")
	foreign.Scopes = without(auth.TenantsIssue) // who has it sees the tokens of all tenants
	stranger := w.as(foreign)
	// A token of a sandbox, with more scopes than such tokens have.
	bound := with("acme")
	bound.Sandbox = turnstone.SandboxID("sb_0000000000000000ab")
	other := w.as(bound)
	before := w.nodes[0].total()
	garbage := []byte(`{"garbage`)
	for _, m := range forCallers(t) {
		row := requests[short(m)]
		t.Run(short(m), func(t *testing.T) {
			need := auth.Scope(api.ScopeOf(connect.Spec{Schema: m}))
			valid := body(t, row.make(have))
			claims := with("acme")
			claims.Scopes = without(need)
			for what, c := range map[string]struct {
				token, code, reason string
				body                []byte
			}{
				"no token":          {"", "unauthenticated", "missing", garbage},
				"a broken token":    {"x.y.z", "unauthenticated", "malformed", garbage},
				"a missing scope":   {w.as(claims).token, "permission_denied", "denied", garbage},
				"a malformed body":  {mine.token, "invalid_argument", "", garbage},
				"another sandbox's": {other.token, "permission_denied", "denied", valid},
			} {
				got := w.raw(m, c.token, c.body)
				if got.code != c.code || got.reason != c.reason {
					t.Errorf("%s: %+v, want %s, %s", what, got, c.code, c.reason)
				}
			}
			if row.names == "" {
				return
			}
			// Another tenant's object answers as one that does not exist.
			there := w.raw(m, stranger.token, valid)
			none := w.raw(m, stranger.token, body(t, row.make(nowhere)))
			hide := strings.NewReplacer(have.sandbox, "ID", have.turn, "ID", have.session, "ID",
				have.snapshot, "ID", have.token, "ID", nowhere.sandbox, "ID", nowhere.turn, "ID",
				nowhere.session, "ID", nowhere.snapshot, "ID", nowhere.token, "ID")
			if there.code != "not_found" || hide.Replace(there.text) != hide.Replace(none.text) ||
				there.code != none.code || there.reason != none.reason {
				t.Errorf("an object of another tenant: %+v; none: %+v", there, none)
			}
		})
	}
	if after := w.nodes[0].total(); after != before {
		t.Errorf("the node was called %d times", after-before)
	}
}

// populate makes an object of each kind.
func (w *world) populate(c *callerClient) (o target) {
	w.Helper()
	ctx := w.Context()
	o.sandbox = w.create(c, &v1.CreateSandboxRequest{}).Sandbox.SandboxId
	s, err := c.sessions.CreateSession(ctx, ask(&v1.CreateSessionRequest{Name: "research",
		Client: newClient()}))
	must(w, err)
	o.session = s.Msg.Session.SessionId
	o.turn = w.startTurn(c, "populate", "research").Turn.TicketId
	k, err := c.sandboxes.SnapshotSandbox(ctx, ask(&v1.SnapshotSandboxRequest{
		SandboxId: o.sandbox}))
	must(w, err)
	o.snapshot = k.Msg.Snapshot.SnapshotId
	t, err := c.server.CreateToken(ctx, ask(&v1.CreateTokenRequest{Name: "t",
		Ttl: durationpb.New(time.Minute)}))
	must(w, err)
	o.token = t.Msg.Token.TokenId
	return o
}

// total counts all calls except those of the watch.
func (n *fakeNode) total() (all int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for method, k := range n.calls {
		if method != "WatchNode" {
			all += k
		}
	}
	return all
}

// TestListsOfTenants: lists and watches show nothing of another tenant, and nothing that the
// patterns of the token do not match.
func TestListsOfTenants(t *testing.T) {
	w := newWorld(t, "a")
	w.populate(w.as(with("acme")))
	narrow := with("acme")
	narrow.Sessions, narrow.Templates = []auth.Pattern{"ci-*"}, []auth.Pattern{"python"}
	for name, c := range map[string]*callerClient{"stranger": w.as(with("other")),
		"narrow": w.as(narrow)} {
		ctx := t.Context()
		a, err := c.sandboxes.ListSandboxes(ctx, ask(&v1.ListSandboxesRequest{}))
		must(t, err)
		b, err := c.turns.ListTurns(ctx, ask(&v1.ListTurnsRequest{}))
		must(t, err)
		d, err := c.sessions.ListSessions(ctx, ask(&v1.ListSessionsRequest{}))
		must(t, err)
		e, err := c.sandboxes.ListSnapshots(ctx, ask(&v1.ListSnapshotsRequest{}))
		must(t, err)
		if n := len(a.Msg.Sandboxes) + len(b.Msg.Turns) + len(d.Msg.Sessions) +
			len(e.Msg.Snapshots); n != 0 {
			t.Errorf("%s sees %d objects", name, n)
		}
	}
}

// TestPatterns: a token of some sessions and templates opens these only, by name and by ID.
func TestPatterns(t *testing.T) {
	w := newWorld(t, "a")
	ctx := t.Context()
	have := w.populate(w.as(with("acme")))
	claims := with("acme")
	claims.Sessions, claims.Templates = []auth.Pattern{"ci-*"}, []auth.Pattern{"python"}
	c := w.as(claims)
	start := func(session, template string) error {
		_, err := c.turns.StartTurn(ctx, ask(&v1.StartTurnRequest{Client: newClient(),
			IdempotencyKey: "k" + session + template, Session: session, Template: template}))
		return err
	}
	create := func(session string, m *v1.CreateSandboxRequest) error {
		m.ContextId, m.Client = session, newClient()
		_, err := c.sandboxes.CreateSandbox(ctx, ask(m))
		return err
	}
	python := func() *v1.CreateSandboxRequest {
		return &v1.CreateSandboxRequest{Source: &v1.CreateSandboxRequest_Template{Template: "python"}}
	}
	for what, x := range map[string]struct {
		err  error
		want connect.Code
	}{
		"turn, another session":         {start("research", "python"), connect.CodePermissionDenied},
		"turn, another session's ID":    {start(have.session, "python"), connect.CodeNotFound},
		"turn, no session":              {start("", "python"), connect.CodePermissionDenied},
		"turn, another template":        {start("ci-1", "ruby"), connect.CodePermissionDenied},
		"turn, the default template":    {start("ci-1", ""), connect.CodePermissionDenied},
		"sandbox, another session":      {create("research", python()), connect.CodePermissionDenied},
		"sandbox, another session's ID": {create(have.session, python()), connect.CodeNotFound},
		"sandbox, the default template": {create("", &v1.CreateSandboxRequest{}),
			connect.CodePermissionDenied},
		"sandbox, an image": {create("", &v1.CreateSandboxRequest{
			Source: &v1.CreateSandboxRequest_Image{Image: "x/python"}}),
			connect.CodePermissionDenied},
		"sandbox, a snapshot of another template": {create("", &v1.CreateSandboxRequest{
			Source: &v1.CreateSandboxRequest_SnapshotId{SnapshotId: have.snapshot}}),
			connect.CodeNotFound},
	} {
		if got := connect.CodeOf(x.err); x.err == nil || got != x.want {
			t.Errorf("%s: %v", what, x.err)
		}
	}
	must(t, start("ci-1", "python"))
	must(t, create("ci-1", python()))
	must(t, create("", python()))
	_, err := c.sessions.RenameSession(ctx, ask(&v1.RenameSessionRequest{Session: "ci-1",
		NewName: "research2"}))
	w.fails(err, connect.CodePermissionDenied)
	_, err = c.templates.GetTemplate(ctx, ask(&v1.GetTemplateRequest{Template: "base"}))
	w.fails(err, connect.CodePermissionDenied)
	if list, err := c.templates.ListTemplates(ctx, ask(&v1.ListTemplatesRequest{})); err != nil ||
		len(list.Msg.Templates) != 0 {
		t.Errorf("%v %v", list, err)
	}
}

// TestSandboxToken: the token of a sandbox reads it and connects to it, and does nothing else.
func TestSandboxToken(t *testing.T) {
	w := newWorld(t, "a")
	c := w.as(with("acme"))
	made := w.create(c, &v1.CreateSandboxRequest{})
	id := made.Sandbox.SandboxId
	twin := w.create(c, &v1.CreateSandboxRequest{}).Sandbox.SandboxId
	own := w.bearer(made.AuthToken)
	allowed := []string{"SandboxService/GetSandbox", "SandboxService/ConnectSandbox"}
	for _, m := range forCallers(t) {
		row := requests[short(m)]
		have := nowhere
		have.sandbox = id
		got := w.raw(m, made.AuthToken, body(t, row.make(have)))
		if may := slices.Contains(allowed, short(m)); may != (got.code == "") ||
			!may && got.code != "permission_denied" {
			t.Errorf("%s: %+v", short(m), got)
		}
		have.sandbox = twin
		if got := w.raw(m, made.AuthToken, body(t, row.make(have))); got.code != "permission_denied" {
			t.Errorf("%s of another sandbox: %+v", short(m), got)
		}
	}
	_, err := own.sandboxes.GetSandbox(t.Context(), ask(&v1.GetSandboxRequest{SandboxId: id}))
	must(t, err)
}
