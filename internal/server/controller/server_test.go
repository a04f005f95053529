package controller

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	connectv1 "turnstone.dev/turnstone/internal/api/turnstone/v1/turnstonev1connect"
	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/internal/server/controller/message"

	"net/http"
	"net/http/httptest"
)

func duration(d time.Duration) *durationpb.Duration { return durationpb.New(d) }

// TestTokens: a token grants at most what its maker's grants, and its secret is nowhere but in the
// answer.
func TestTokens(t *testing.T) {
	w := newWorld(t, "a")
	ctx := t.Context()
	claims := with("acme")
	claims.Scopes = []auth.Scope{"turns:*", "tokens:*", auth.SessionsRead}
	claims.Sessions = []auth.Pattern{"ci-*"}
	c := w.as(claims)
	create := func(m *v1.CreateTokenRequest) (*v1.CreateTokenResponse, error) {
		m.Name = "t"
		if m.Ttl == nil {
			m.Ttl = duration(time.Minute)
		}
		a, err := c.server.CreateToken(ctx, ask(m))
		if err != nil {
			return nil, err
		}
		return a.Msg, nil
	}
	for what, m := range map[string]*v1.CreateTokenRequest{
		"more scopes":    {Scopes: []string{"sandboxes:read"}},
		"another tenant": {Tenant: "other"},
		"more sessions":  {Sessions: []string{"*"}},
		"a longer life":  {Ttl: duration(2 * time.Hour)},
	} {
		_, err := create(m)
		if s := w.fails(err, connect.CodePermissionDenied); s.Reason != "denied" {
			t.Errorf("%s: %v", what, s)
		}
	}
	for _, m := range []*v1.CreateTokenRequest{{Scopes: []string{"nothing:*"}},
		{Sessions: []string{"["}}} {
		_, err := create(m)
		w.fails(err, connect.CodeInvalidArgument)
	}
	made, err := create(&v1.CreateTokenRequest{Sessions: []string{"ci-7"}})
	must(t, err)
	if want := []string{"turns:run", "turns:read", "turns:cancel", "sessions:read"}; !slices.Equal(
		made.Token.Scopes, want) {
		t.Errorf("without a list it has the scopes %v", made.Token.Scopes)
	}
	p, err := w.verifier.Verify(ctx, made.Secret)
	must(t, err)
	if p.Tenant != "acme" || p.Subject != "t" || !slices.Equal(p.Sessions, []auth.Pattern{"ci-7"}) {
		t.Errorf("%+v", p)
	}
	list, err := c.server.ListTokens(ctx, ask(&v1.ListTokensRequest{}))
	must(t, err)
	if len(list.Msg.Tokens) != 1 || list.Msg.Tokens[0].TokenId != made.Token.TokenId ||
		list.Msg.Tokens[0].Revoked {
		t.Fatalf("%v", list.Msg)
	}
	// Another tenant, unless it issues tokens for tenants.
	foreign := with("other")
	foreign.Scopes = without(auth.TenantsIssue)
	stranger := w.as(foreign)
	if list, err := stranger.server.ListTokens(ctx, ask(&v1.ListTokensRequest{})); err != nil ||
		len(list.Msg.Tokens) != 0 {
		t.Errorf("%v %v", list, err)
	}
	revoke := ask(&v1.RevokeTokenRequest{TokenId: made.Token.TokenId})
	_, err = stranger.server.RevokeToken(ctx, revoke)
	w.fails(err, connect.CodeNotFound)
	if _, err = w.verifier.Verify(ctx, made.Secret); err != nil {
		t.Fatal(err)
	}
	operator := w.as(with(auth.OperatorTenant))
	if list, err := operator.server.ListTokens(ctx, ask(&v1.ListTokensRequest{})); err != nil ||
		len(list.Msg.Tokens) != 1 {
		t.Errorf("%v %v", list, err)
	}
	_, err = operator.server.RevokeToken(ctx, revoke)
	must(t, err)
	if _, err = w.verifier.Verify(ctx, made.Secret); auth.ReasonOf(err) != auth.Revoked {
		t.Errorf("%v", err)
	}
	list, err = c.server.ListTokens(ctx, ask(&v1.ListTokensRequest{}))
	must(t, err)
	if !list.Msg.Tokens[0].Revoked {
		t.Errorf("%v", list.Msg)
	}
	w.o.Longest = time.Minute
	_, err = create(&v1.CreateTokenRequest{Ttl: duration(time.Minute + time.Second)})
	w.fails(err, connect.CodeInvalidArgument)
	box := w.create(operator, &v1.CreateSandboxRequest{})
	if end := box.AuthTokenExpires.AsTime(); time.Until(end) > time.Minute {
		t.Errorf("the token of a sandbox ends at %v", end)
	}
	w.restart()
	if _, err = w.verifier.Verify(ctx, made.Secret); auth.ReasonOf(err) != auth.Revoked {
		t.Errorf("after a restart: %v", err)
	}
}

// TestDescendantsAreListed: a token that was made with a revoked one is listed as revoked, also
// through others and after a restart; others are not.
func TestDescendantsAreListed(t *testing.T) {
	w := newWorld(t, "a")
	ttl := 40 * time.Minute
	make := func(c *callerClient, name string) (string, *callerClient) {
		ttl /= 2 // a token with the same time that is made later would end later
		a, err := c.server.CreateToken(t.Context(), ask(&v1.CreateTokenRequest{Name: name,
			Ttl: duration(ttl), Scopes: []string{"tokens:*"}}))
		must(t, err)
		return a.Msg.Token.TokenId, w.bearer(a.Msg.Secret)
	}
	top := w.as(with("acme"))
	id, parent := make(top, "parent")
	_, child := make(parent, "child")
	make(child, "grandchild")
	make(top, "sibling")
	revoked := func() (names []string) {
		list, err := top.server.ListTokens(t.Context(), ask(&v1.ListTokensRequest{}))
		must(t, err)
		for _, token := range list.Msg.Tokens {
			if token.Revoked {
				names = append(names, token.Name)
			}
		}
		return names
	}
	if names := revoked(); names != nil {
		t.Errorf("before: %q", names)
	}
	_, err := top.server.RevokeToken(t.Context(), ask(&v1.RevokeTokenRequest{TokenId: id}))
	must(t, err)
	want := []string{"grandchild", "child", "parent"}
	if names := revoked(); !slices.Equal(names, want) {
		t.Errorf("%q, not %q", names, want)
	}
	w.restart()
	top = w.as(with("acme"))
	if names := revoked(); !slices.Equal(names, want) {
		t.Errorf("after a restart: %q, not %q", names, want)
	}
}

// TestSecretsStay: no token is in the database, in the log or in an error.
func TestSecretsStay(t *testing.T) {
	w := newWorld(t, "a")
	c := w.as(with("acme"))
	ctx := t.Context()
	box := w.create(c, &v1.CreateSandboxRequest{IdempotencyKey: "k",
		Env: map[string]string{"PUBLIC": "value-of-a-variable"}})
	made, err := c.server.CreateToken(ctx, ask(&v1.CreateTokenRequest{Name: "x",
		Ttl: duration(time.Minute)}))
	must(t, err)
	_, err = c.server.RevokeToken(ctx, ask(&v1.RevokeTokenRequest{TokenId: "eyJ" + made.Msg.Secret[3:200]}))
	w.fails(err, connect.CodeNotFound)
	if strings.Contains(err.Error(), made.Msg.Secret[3:60]) {
		t.Error("an error repeats a token")
	}
	w.stop()
	var all []byte
	for _, name := range []string{"server.db", "server.db-wal", "server.db-shm"} {
		b, err := os.ReadFile(filepath.Join(w.dir, name))
		if err == nil {
			all = append(all, b...)
		}
	}
	all = append(all, w.log.String()...)
	if len(all) < 1000 || !bytes.Contains(all, []byte(made.Msg.Token.TokenId)) {
		t.Fatal("the database was not read")
	}
	for _, secret := range []string{c.token, box.AuthToken, made.Msg.Secret} {
		for part := range strings.SplitSeq(secret, ".") {
			if strings.HasPrefix(part, "eyJhbGci") {
				continue // the header is no secret, and the same in all
			}
			if bytes.Contains(all, []byte(part)) {
				t.Errorf("a part of a token is stored or logged: %.10s…", part)
			}
		}
	}
	if bytes.Contains(all, []byte("value-of-a-variable")) {
		t.Error("the value of a variable is stored or logged")
	}
}

// TestPlacement: a machine goes where it fits, to the template, and to the least load.
func TestPlacement(t *testing.T) {
	w := newWorld(t, "a", "b")
	c := w.as(with("acme"))
	place := func(m *v1.CreateSandboxRequest) (string, error) {
		m.Client = newClient()
		a, err := c.sandboxes.CreateSandbox(t.Context(), ask(m))
		if err != nil {
			return "", err
		}
		return a.Msg.Sandbox.Node, nil
	}
	counts := map[string]int{}
	for range 10 {
		node, err := place(&v1.CreateSandboxRequest{Machine: &v1.Machine{Cpus: 2}})
		must(t, err)
		counts[node]++
	}
	if counts["a"] != 5 || counts["b"] != 5 {
		t.Errorf("ten equal machines: %v", counts)
	}
	b := w.nodes[1]
	b.mu.Lock()
	b.templates["python"] = &v1.Template{Name: "python",
		State: v1.TemplateState_TEMPLATE_STATE_BUILT}
	b.tell(evChanged, b.templates["python"])
	b.capacity.Memory = 8 << 30
	b.mu.Unlock()
	w.registerNode(b)
	w.eventually("the template is known", func() bool { return len(w.nodesTemplates()) == 2 })
	python := func(m *v1.Machine) *v1.CreateSandboxRequest {
		return &v1.CreateSandboxRequest{Machine: m,
			Source: &v1.CreateSandboxRequest_Template{Template: "python"}}
	}
	for range 3 {
		if node, err := place(python(nil)); node != "b" {
			t.Errorf("not where its template is: %s %v", node, err)
		}
	}
	if node, err := place(python(&v1.Machine{Memory: 32 << 30})); node != "a" {
		t.Errorf("not where it fits: %s %v", node, err)
	}
	_, err := place(&v1.CreateSandboxRequest{Machine: &v1.Machine{Memory: 1 << 40}})
	if s := w.fails(err, connect.CodeResourceExhausted); api.Retryable(s) {
		t.Errorf("larger than each node, and a retry is said to help: %v", s)
	}
	_, err = place(&v1.CreateSandboxRequest{Substrate: "qemu"})
	w.fails(err, connect.CodeUnavailable)
	if node, err := place(&v1.CreateSandboxRequest{Substrate: "gvisor"}); node == "" {
		t.Error(err)
	}
	w.waiting.Wait = 2 * time.Second // a creation that fits later is refused before it fits
	w.restart()
	c = w.as(with("acme"))
	_, err = place(&v1.CreateSandboxRequest{Machine: &v1.Machine{Memory: 32 << 30}})
	must(t, err)
	_, err = place(&v1.CreateSandboxRequest{Machine: &v1.Machine{Memory: 40 << 30}})
	if s := w.fails(err, connect.CodeResourceExhausted); !api.Retryable(s) {
		t.Errorf("it would fit later: %v", s)
	}
}

// TestUsage: machines count from their beginning to their end, once, also over restarts.
func TestUsage(t *testing.T) {
	w := newWorld(t, "a")
	c := w.as(with("acme"))
	ctx := t.Context()
	usage := func() *v1.GetUsageResponse {
		must(t, w.flushUsage(ctx))
		m, err := w.as(with("acme")).turns.GetUsage(ctx, ask(&v1.GetUsageRequest{
			Since: timestamppb.New(time.Now().Add(-time.Hour)),
			Until: timestamppb.New(time.Now().Add(time.Hour))}))
		must(t, err)
		return m.Msg
	}
	id := w.create(c, &v1.CreateSandboxRequest{Machine: &v1.Machine{Cpus: 4,
		Memory: 2 << 30}}).Sandbox.SandboxId
	ticket := w.startTurn(c, "k", "research").Turn.TicketId
	w.create(w.as(with("other")), &v1.CreateSandboxRequest{})
	if u := usage(); u.ActiveSandboxes != 1 || u.Sandboxes != 1 || u.Turns != 0 || u.ActiveTurns != 0 {
		t.Errorf("%v", u)
	}
	w.nodes[0].finish(ticket)
	w.eventually("the turn counts", func() bool { return usage().Turns == 1 })
	w.restart()
	if u := usage(); u.ActiveSandboxes != 1 || u.Sandboxes != 1 || u.StoredBytes != 100 {
		t.Errorf("after a restart: %v", u)
	}
	w.eventually("a machine with 4 CPUs counts fourfold", func() bool {
		u := usage()
		return u.CpuTime.AsDuration() >= 2*time.Second && u.MemoryMibSeconds >= 1000
	})
	c = w.as(with("acme"))
	_, err := c.sandboxes.DeleteSandbox(ctx, ask(&v1.DeleteSandboxRequest{SandboxId: id}))
	must(t, err)
	last := usage()
	if last.ActiveSandboxes != 0 || last.Sandboxes != 1 {
		t.Errorf("%v", last)
	}
	if again := usage(); again.CpuTime.AsDuration() != last.CpuTime.AsDuration() {
		t.Errorf("an ended machine still counts: %v after %v", again, last)
	}
	_, err = c.turns.GetUsage(ctx, ask(&v1.GetUsageRequest{
		Since: &timestamppb.Timestamp{Seconds: 1 << 60}}))
	w.fails(err, connect.CodeInvalidArgument)
}

// TestSessions: names are unique, also while they change.
func TestSessions(t *testing.T) {
	w := newWorld(t, "a", "b")
	c := w.as(with("acme"))
	ctx := t.Context()
	create := func(name string) (*v1.Session, error) {
		m, err := c.sessions.CreateSession(ctx, ask(&v1.CreateSessionRequest{Name: name,
			Client: newClient()}))
		if err != nil {
			return nil, err
		}
		return m.Msg.Session, nil
	}
	one, err := create("one")
	must(t, err)
	_, err = create("one")
	w.fails(err, connect.CodeInvalidArgument)
	_, err = create("s_0000000000000000zz"[:20])
	must(t, err) // "z" is no digit of an ID
	_, err = create("s_000000000000000011")
	w.fails(err, connect.CodeInvalidArgument)
	_, err = create("two")
	must(t, err)
	_, err = c.sessions.RenameSession(ctx, ask(&v1.RenameSessionRequest{Session: "one",
		NewName: "two"}))
	w.fails(err, connect.CodeInvalidArgument)
	renamed, err := c.sessions.RenameSession(ctx, ask(&v1.RenameSessionRequest{
		Session: one.SessionId, NewName: "three"}))
	must(t, err)
	if renamed.Msg.Session.Name != "three" {
		t.Errorf("%v", renamed.Msg)
	}
	_, err = create("one") // the name is free
	must(t, err)
	// A name that the node gives is taken over.
	for _, n := range w.nodes {
		n.mu.Lock()
		if s := n.sessions[one.SessionId]; s != nil {
			s.Session.Name = "four"
			n.tell(evChanged, s)
		}
		n.mu.Unlock()
	}
	w.eventually("the name changes", func() bool {
		m, err := c.sessions.GetSession(ctx, ask(&v1.GetSessionRequest{Session: "four"}))
		return err == nil && m.Msg.Session.SessionId == one.SessionId
	})
	m, err := c.sessions.ConnectSession(ctx, ask(&v1.ConnectSessionRequest{Session: "four",
		Client: newClient()}))
	must(t, err)
	if m.Msg.Channel == nil {
		t.Error("there is no channel")
	}
	_, err = c.sessions.DeleteSession(ctx, ask(&v1.DeleteSessionRequest{Session: "four"}))
	must(t, err)
	_, err = c.sessions.DeleteSession(ctx, ask(&v1.DeleteSessionRequest{Session: "four"}))
	w.fails(err, connect.CodeNotFound)
}

// TestPeers: a gateway learns where a channel is, for callers who may open it, and which tokens are
// valid.
func TestPeers(t *testing.T) {
	w := newWorld(t, "a")
	c := w.as(with("acme"))
	id := w.create(c, &v1.CreateSandboxRequest{}).Sandbox.SandboxId
	peers := httptest.NewServer(w.Peers())
	defer peers.Close()
	client := connectv1.NewControllerServiceClient(w.clients, peers.URL, api.ClientOptions()...)
	ctx := t.Context()
	principal := func(change func(*auth.Principal)) *v1.Principal {
		p, err := w.verifier.Verify(ctx, c.token)
		must(t, err)
		change(&p)
		return message.Principal(p)
	}
	locate := func(p *v1.Principal, node, sandbox string) (*v1.LocateChannelResponse, error) {
		m := &v1.LocateChannelRequest{Principal: p,
			Target: &v1.LocateChannelRequest_Node{Node: node}}
		if sandbox != "" {
			m.Target = &v1.LocateChannelRequest_SandboxId{SandboxId: sandbox}
		}
		a, err := client.LocateChannel(ctx, ask(m))
		if err != nil {
			return nil, err
		}
		return a.Msg, nil
	}
	all := principal(func(*auth.Principal) {})
	for _, sandbox := range []string{"", id} {
		at, err := locate(all, "a", sandbox)
		must(t, err)
		if at.Node != "a" || at.Address != w.nodes[0].address() {
			t.Errorf("%v", at)
		}
	}
	other := principal(func(p *auth.Principal) { p.Tenant = "other" })
	few := principal(func(p *auth.Principal) { p.Scopes = []auth.Scope{auth.SandboxesRead} })
	bound := principal(func(p *auth.Principal) { p.Sandbox = "sb_000000000000000000" })
	own := principal(func(p *auth.Principal) { p.Sandbox = turnstone.SandboxID(id) })
	for what, x := range map[string]struct {
		p             *v1.Principal
		node, sandbox string
		want          connect.Code
	}{
		"another tenant's sandbox":  {other, "", id, connect.CodeNotFound},
		"a missing scope":           {few, "", id, connect.CodePermissionDenied},
		"a missing scope of a node": {few, "a", "", connect.CodePermissionDenied},
		"another sandbox's token":   {bound, "", id, connect.CodePermissionDenied},
		"a node, a sandbox's token": {own, "a", "", connect.CodePermissionDenied},
		"a node that is not there":  {all, "zzz", "", connect.CodeUnavailable},
	} {
		if _, err := locate(x.p, x.node, x.sandbox); connect.CodeOf(err) != x.want {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := locate(own, "", id); err != nil {
		t.Error(err)
	}
	_, err := c.sandboxes.DeleteSandbox(ctx, ask(&v1.DeleteSandboxRequest{SandboxId: id}))
	must(t, err)
	if _, err := locate(own, "", id); connect.CodeOf(err) != connect.CodeFailedPrecondition {
		t.Errorf("an ended sandbox: %v", err)
	}
	// Callers do not reach the peers' service.
	r, err := http.NewRequestWithContext(ctx, http.MethodPost,
		w.http.URL+"/turnstone.v1.ControllerService/RegisterNode", strings.NewReader("{}"))
	must(t, err)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer "+c.token)
	resp, err := w.clients.Do(r)
	must(t, err)
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusNotImplemented {
		t.Errorf("a caller gets %d", resp.StatusCode)
	}
}

// TestAuthority: a gateway gets the bulletin, its changes, and confirmations in between.
func TestAuthority(t *testing.T) {
	w := newWorld(t, "a")
	peers := httptest.NewServer(w.Peers())
	defer peers.Close()
	defer peers.CloseClientConnections()
	client := connectv1.NewControllerServiceClient(w.clients, peers.URL, api.ClientOptions()...)
	stream, err := client.WatchAuthority(t.Context(), ask(&v1.WatchAuthorityRequest{}))
	must(t, err)
	defer func() { _ = stream.Close() }()
	var number uint64
	next := func() *auth.Bulletin {
		var text []byte
		for stream.Receive() {
			m := stream.Msg()
			if len(m.Part) == 0 {
				if m.Number != number {
					t.Fatalf("%d is confirmed after %d", m.Number, number)
				}
				return nil
			}
			if text = append(text, m.Part...); m.Last {
				b, err := auth.DecodeBulletin(text)
				must(t, err)
				number = b.Number
				return &b
			}
		}
		t.Fatal(stream.Err())
		return nil
	}
	first := next()
	if first == nil || len(first.Keys) == 0 {
		t.Fatalf("%v", first)
	}
	if next() != nil {
		t.Fatal("an unchanged bulletin was sent again")
	}
	admin := w.as(with("acme"))
	made, err := admin.server.CreateToken(t.Context(), ask(&v1.CreateTokenRequest{Name: "x",
		Ttl: duration(time.Minute)}))
	must(t, err)
	_, err = admin.server.RevokeToken(t.Context(), ask(&v1.RevokeTokenRequest{
		TokenId: made.Msg.Token.TokenId}))
	must(t, err)
	for b := next(); ; b = next() {
		if b != nil && len(b.Revoked) == 1 && b.Revoked[0].TokenID == made.Msg.Token.TokenId {
			return
		}
	}
}

// TestOperator: the principal of a request's context needs no token, and a header does not make
// one.
func TestOperator(t *testing.T) {
	w := newWorld(t, "a")
	socket := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.Callers().ServeHTTP(rw, r.WithContext(auth.NewContext(r.Context(), auth.Operator("0"))))
	}))
	defer socket.Close()
	client := connectv1.NewServerServiceClient(w.clients, socket.URL, api.ClientOptions()...)
	made, err := client.CreateToken(t.Context(), ask(&v1.CreateTokenRequest{Name: "ci",
		Tenant: "acme", Ttl: duration(time.Hour)}))
	must(t, err)
	if made.Msg.Token.Tenant != "acme" {
		t.Errorf("%v", made.Msg)
	}
	w.create(w.bearer(made.Msg.Secret), &v1.CreateSandboxRequest{})
	resp, err := w.clients.Get(w.http.URL + "/turnstone.v1.Nothing/Get")
	must(t, err)
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusUnauthorized || resp.Header.Get("WWW-Authenticate") == "" {
		t.Errorf("%d", resp.StatusCode)
	}
}
