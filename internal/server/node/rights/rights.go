// Package rights narrows the commands of a node's channel by the tokens of its connection: the one
// that the statement was made for, and the one that opened the connection. A command needs a row in
// the table, and each of the tokens has to grant it. What the client's key may do is another
// question: package owners answers it.
//
// The node does not verify the tokens: it believes its controller and its gateways, which have.
package rights

import (
	"context"
	"slices"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/wire"
)

// grace is how long after the end of a token the node ends its connections. Gateways end them at the
// token's end; the node's clock may be ahead of theirs.
const grace = auth.MaxLeeway

// Rights are what all tokens of a connection grant together. They are safe for concurrent use.
// The zero Rights grant nothing.
type Rights struct {
	tenant string
	tokens []auth.Principal
}

// Of returns the rights of a connection to the state of a tenant. Without tokens, or with one of
// another tenant, it grants nothing.
func Of(tenant string, tokens ...auth.Principal) Rights {
	return Rights{tenant: tenant, tokens: tokens}
}

// And returns the rights that a further token narrows.
func (r Rights) And(token auth.Principal) Rights {
	return Rights{tenant: r.tenant, tokens: append(slices.Clone(r.tokens), token)}
}

// Operator reports whether the operator opened the connection: no token bounds it.
func (r Rights) Operator() bool {
	for _, t := range r.tokens {
		if t.Issuer != "" || t.TokenID != "" || t.Sandbox != "" || t.Tenant != auth.OperatorTenant {
			return false
		}
	}
	return len(r.tokens) > 0
}

// Expires returns when the connection ends, whatever runs in it; zero: never.
func (r Rights) Expires() (first time.Time) {
	for _, t := range r.tokens {
		if !t.Expires.IsZero() && (first.IsZero() || t.Expires.Before(first)) {
			first = t.Expires
		}
	}
	if !first.IsZero() {
		first = first.Add(grace)
	}
	return first
}

// Allow returns nil if each token grants the request. The error is of kind Denied.
func (r Rights) Allow(req auth.Request) error {
	if len(r.tokens) == 0 {
		return deny("is not known to the node").WithHint("let the operator check that gateway and " +
			"node have the same version")
	}
	for _, t := range r.tokens {
		if t.Tenant != r.tenant || t.Tenant == "" {
			return deny("is of another tenant than the statement of the channel").
				WithHint("connect again")
		}
		if err := t.Allow(req); err != nil {
			return err
		}
	}
	return nil
}

// AllowSession returns nil if each token grants the session with this name; a session without a name
// has its ID here, and every token grants "". It asks for no scope, and does not end: a turn that runs keeps its session.
func (r Rights) AllowSession(name string) error {
	return r.each(func(t auth.Principal) error { return t.AllowNames(name, "") })
}

// AllowTemplate is AllowSession for the name of a template or an image.
func (r Rights) AllowTemplate(name string) error {
	return r.each(func(t auth.Principal) error { return t.AllowNames("", name) })
}

func (r Rights) each(f func(auth.Principal) error) error {
	if len(r.tokens) == 0 {
		return r.Allow(auth.Request{})
	}
	for _, t := range r.tokens {
		if err := f(t); err != nil {
			return err
		}
	}
	return nil
}

func deny(format string, args ...any) *turnstone.Error {
	return turnstone.Errorf("channel.command", turnstone.KindDenied, "the token", format, args...)
}

// Guard makes d refuse the commands that the rights do not grant, before anything of a command is
// done. ticket returns what a ticket is for; the error of one that does not exist is the command's
// to give.
func (r Rights) Guard(d *wire.Dispatcher, ticket TicketOf) {
	next := d.Around
	d.Around = func(ctx context.Context, c *wire.Conn, method string, params any,
		answer func() (any, error)) (any, error) {
		if err := r.command(ctx, method, params, ticket); err != nil {
			return nil, err
		}
		if next != nil {
			return next(ctx, c, method, params, answer)
		}
		return answer()
	}
}

// A TicketOf returns the names of a ticket's session and template; empty: none.
type TicketOf func(ctx context.Context, id string) (session, template string)

// about are names that a command leads to; empty: none.
type about struct{ session, template string }

// command returns nil if the rights grant a command.
func (r Rights) command(ctx context.Context, method string, params any,
	ticket TicketOf) error {
	w, ok := table[method]
	if !ok {
		return deny("grants no command %s", method)
	}
	if e := r.Expires(); !e.IsZero() && !time.Now().Before(e) {
		return deny("expired at %s", e.Add(-grace).UTC().Format(time.RFC3339)).
			WithHint("connect again with a new token")
	}
	if err := r.scopes(w, params); err != nil {
		return err
	}
	var of about
	if w.names != nil {
		of = w.names(params)
	}
	if w.ticket != nil {
		of.session, of.template = ticket(ctx, w.ticket(params))
	}
	if err := r.AllowSession(of.session); err != nil {
		return err
	}
	return r.AllowTemplate(of.template)
}

// scopes returns nil if each token has all scopes of a row, and one of its alternatives.
func (r Rights) scopes(w row, params any) error {
	all := w.all
	if w.more != nil {
		all = append(all[:len(all):len(all)], w.more(params)...)
	}
	for _, s := range all {
		if err := r.Allow(auth.Request{Scope: s}); err != nil {
			return err
		}
	}
	if len(w.any) == 0 {
		return nil
	}
	// Each token may have another of the alternatives.
	for _, t := range r.tokens {
		var err error
		one := Of(r.tenant, t)
		for _, s := range w.any {
			if err = one.Allow(auth.Request{Scope: s}); err == nil {
				break
			}
		}
		if err != nil {
			return err
		}
	}
	if len(r.tokens) == 0 {
		return r.Allow(auth.Request{Scope: w.any[0]})
	}
	return nil
}
