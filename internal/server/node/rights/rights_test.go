package rights

import (
	"context"
	"encoding/json"
	"net"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/wire"
)

// domains are those of a node's channel.
var domains = map[string]bool{"Turn": true, "Session": true, "Template": true}

// described are the commands of the descriptor.
func described(t *testing.T) (all []string) {
	t.Helper()
	var d struct {
		Domains []struct {
			Domain   string
			Commands []struct{ Name string }
		}
	}
	if err := json.Unmarshal(wire.Descriptor(), &d); err != nil {
		t.Fatal(err)
	}
	for _, dom := range d.Domains {
		for _, c := range dom.Commands {
			all = append(all, dom.Domain+"."+c.Name)
		}
	}
	return all
}

func domainOf(method string) string {
	for i := range method {
		if method[i] == '.' {
			return method[:i]
		}
	}
	return ""
}

// TestTableIsComplete: each command of the domains of a node's channel has a row that needs a scope,
// and nothing else has one.
func TestTableIsComplete(t *testing.T) {
	known := map[string]bool{}
	for _, method := range described(t) {
		known[method] = true
		w, ok := table[method]
		if ok != domains[domainOf(method)] {
			t.Errorf("%s: a row in the table: %v", method, ok)
		}
		if ok && len(w.all) == 0 && len(w.any) == 0 {
			t.Errorf("%s needs no scope", method)
		}
	}
	for method := range table {
		if !known[method] {
			t.Errorf("%s is no command", method)
		}
	}
}

func token(change ...func(*auth.Principal)) auth.Principal {
	p := auth.Principal{Issuer: "i", Tenant: "t", TokenID: "tk", Scopes: auth.AllScopes(),
		Sessions: []auth.Pattern{"ci-*"}, Templates: []auth.Pattern{"py*"},
		Expires: time.Now().Add(time.Hour)}
	for _, f := range change {
		f(&p)
	}
	return p
}

func scopes(list ...auth.Scope) func(*auth.Principal) {
	return func(p *auth.Principal) { p.Scopes = list }
}

func noTicket(context.Context, string) (session, template string) { return "", "" }

// params are parameters of the type of a command, for rows that look at them.
var params = map[string]any{
	"Turn.start": &wire.TurnStartParams{}, "Turn.attach": &wire.TurnAttachParams{},
	"Turn.cancel": &wire.TurnCancelParams{}, "Session.rename": &wire.SessionRenameParams{},
	"Session.replayRange": &wire.SessionReplayRangeParams{},
	"Template.build":      &wire.TemplateBuildParams{},
	"Template.remove":     &wire.TemplateRemoveParams{},
}

// TestEachCommand: of two tokens, both have to grant each command, whichever of them is narrower.
func TestEachCommand(t *testing.T) {
	broad := token()
	for _, method := range described(t) {
		ask := func(tokens ...auth.Principal) error {
			return Of("t", tokens...).command(t.Context(), method, params[method], noTicket)
		}
		w, ok := table[method]
		if err := ask(broad, broad); (err == nil) != ok {
			t.Errorf("%s with all scopes: %v", method, err)
		}
		for what, tokens := range map[string][]auth.Principal{"none": nil, "zero": {broad, {}},
			"no scope": {broad, token(scopes())},
			"another":  {token(scopes(auth.NodesRead)), broad},
			"expired": {broad, token(func(p *auth.Principal) {
				p.Expires = time.Now().Add(-grace - time.Second)
			})},
			"of a sandbox": {broad, token(func(p *auth.Principal) {
				p.Sandbox = turnstone.NewSandboxID()
			})},
			"of another tenant": {broad, token(func(p *auth.Principal) { p.Tenant = "u" })}} {
			if err := ask(tokens...); turnstone.KindOf(err) != turnstone.KindDenied {
				t.Errorf("%s: %s: %v", method, what, err)
			}
		}
		for i, s := range w.all { // each of them is needed
			rest := append([]auth.Scope{}, w.all[:i]...)
			rest = append(append(rest, w.all[i+1:]...), w.any...)
			if err := ask(broad, token(scopes(rest...))); turnstone.KindOf(err) !=
				turnstone.KindDenied {
				t.Errorf("%s without %s: %v", method, s, err)
			}
		}
		for _, s := range w.any { // one of them is enough
			if err := ask(token(scopes(append([]auth.Scope{s}, w.all...)...)), broad); err != nil {
				t.Errorf("%s with %s: %v", method, s, err)
			}
		}
	}
}

// TestNames checks the names that commands have in their parameters and tickets.
func TestNames(t *testing.T) {
	r := Of("t", token(), token(func(p *auth.Principal) {
		p.Sessions, p.Templates = []auth.Pattern{auth.Any}, []auth.Pattern{auth.Any}
	}))
	ticket := func(_ context.Context, id string) (session, template string) {
		t := map[string]about{"good": {"ci-1", "python"}, "session": {"other", "python"},
			"template": {"ci-1", "node"}}[id]
		return t.session, t.template
	}
	for _, c := range []struct {
		method string
		params any
		ok     bool
	}{
		{"Turn.start", &wire.TurnStartParams{Ticket: "good"}, true},
		{"Turn.start", &wire.TurnStartParams{Ticket: "session"}, false},
		{"Turn.start", &wire.TurnStartParams{Ticket: "template"}, false},
		{"Turn.attach", &wire.TurnAttachParams{Ticket: "session"}, false},
		{"Turn.cancel", &wire.TurnCancelParams{Ticket: "session"}, false},
		{"Session.rename", &wire.SessionRenameParams{Name: "ci-2"}, true},
		{"Session.rename", &wire.SessionRenameParams{Name: "production"}, false},
		{"Template.build", &wire.TemplateBuildParams{Name: "python"}, true},
		{"Template.build", &wire.TemplateBuildParams{Name: "node"}, false},
		{"Template.build", &wire.TemplateBuildParams{Name: "x/y", Spec: 1}, true}, // by its spec
		{"Template.remove", &wire.TemplateRemoveParams{Name: "node"}, false},
	} {
		err := r.command(t.Context(), c.method, c.params, ticket)
		if (err == nil) != c.ok || err != nil && turnstone.KindOf(err) != turnstone.KindDenied {
			t.Errorf("%s %+v: %v", c.method, c.params, err)
		}
	}
	onHead := &wire.SessionReplayRangeParams{OnHead: true}
	r = Of("t", token(scopes(auth.SessionsRead, auth.TurnsRun)))
	if r.command(t.Context(), "Session.replayRange", onHead, noTicket) == nil {
		t.Error("a replay on the head without sessions:write")
	}
}

// TestOperator: a statement of the operator that a token uses is the token's.
func TestOperator(t *testing.T) {
	operator := auth.Operator("root")
	if !Of("local", operator, operator).Operator() || Of("local", operator, token()).Operator() ||
		Of("local", operator, auth.Principal{}).Operator() || Of("local").Operator() {
		t.Error("who is the operator is wrong")
	}
	if e := Of("local", operator, operator).Expires(); !e.IsZero() {
		t.Error(e)
	}
}

// TestGuard: what the tokens do not grant does not reach its handler.
func TestGuard(t *testing.T) {
	d := wire.NewDispatcher()
	n := 0
	d.Around = func(context.Context, *wire.Conn, string, any, func() (any, error)) (any, error) {
		n++
		return &wire.SessionListParams{}, nil
	}
	Of("t", token(scopes(auth.TurnsRun)), token()).Guard(d, noTicket)
	wire.RegisterTurn(d, nothing{})
	near, far := net.Pipe()
	server := wire.NewConn(far, wire.Options{Dispatcher: d})
	client := wire.NewClient(near)
	defer func() { _ = client.Close(); _ = server.Close(); client.Wait(); server.Wait() }()
	if err := client.TurnCancel(t.Context(), &wire.TurnCancelParams{Ticket: "x"}); err != nil || n != 1 {
		t.Fatal(n, err)
	}
	d2 := wire.NewDispatcher()
	Of("t", token(scopes(auth.TurnsRead))).Guard(d2, noTicket)
	wire.RegisterTurn(d2, nothing{})
	near, far = net.Pipe()
	server2 := wire.NewConn(far, wire.Options{Dispatcher: d2})
	client2 := wire.NewClient(near)
	defer func() { _ = client2.Close(); _ = server2.Close(); client2.Wait(); server2.Wait() }()
	err := client2.TurnCancel(t.Context(), &wire.TurnCancelParams{Ticket: "x"})
	if turnstone.KindOf(err) != turnstone.KindDenied {
		t.Fatal(err)
	}
}

// nothing panics when a command reaches it.
type nothing struct{ wire.TurnServer }
