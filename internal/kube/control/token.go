package control

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/remote/hosts"
	"turnstone.dev/turnstone/internal/server/auth"
)

const (
	tokenLife = time.Hour
	// leastLife is the least life of a token for a tenant: shorter ones would be made all the time.
	leastLife = 5 * time.Second
	// mostSkew is by how much earlier a tenant's token ends than the operator's, for clocks that differ.
	mostSkew = 5 * time.Minute
)

// claims are what the operator's own token says. Nothing here is believed: the server verifies it.
type claims struct {
	Issued    float64  `json:"iat"`
	Expires   float64  `json:"exp"`
	Tenant    string   `json:"tenant"`
	Subject   string   `json:"sub"`
	Scope     string   `json:"scope"`
	Sessions  []string `json:"sessions"`
	Templates []string `json:"templates"`
}

func (c claims) issued() time.Time { return time.Unix(int64(c.Issued), 0) }
func (c claims) ends() time.Time   { return time.Unix(int64(c.Expires), 0) }

// read returns the operator's token and its claims; known is false if they cannot be read.
func (o Options) read() (token string, c claims, known bool, err error) {
	if token, err = hosts.ReadToken(o.TokenFile); err != nil {
		return "", c, false, err
	}
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return token, c, false, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || json.Unmarshal(b, &c) != nil || c.Expires <= 0 {
		return token, claims{}, false, nil
	}
	return token, c, true, nil
}

// Ends returns when the operator's token ends; zero: the token does not say it.
func (c *Client) Ends() (time.Time, error) {
	_, is, known, err := c.o.read()
	if err != nil || !known {
		return time.Time{}, err
	}
	return is.ends(), nil
}

// lifeOf returns how long a tenant's token is to live: no token outlives the one that it is made with.
func (c *Client) lifeOf() (time.Duration, error) {
	_, is, known, err := c.o.read()
	if err != nil || !known {
		return tokenLife, err
	}
	left := time.Until(is.ends())
	life := min(tokenLife, left-min(left/10, mostSkew))
	if life < leastLife {
		return 0, ended(is.ends())
	}
	return life, nil
}

// ended is the error of an operator whose token has ended, or is about to.
func ended(at time.Time) error {
	return turnstone.Errorf("kube.token", turnstone.KindDenied, "the operator's token", "ended at %s",
		at.UTC().Format(time.RFC3339)).
		WithHint("make another one with turn token create at the server, and put it in place of the old one; " +
			"with the scope tokens:renew and --renew the operator does so before its end")
}

// Check reports why the server cannot be used.
func (c *Client) Check(ctx context.Context) error {
	if at, err := c.Ends(); err != nil {
		return err
	} else if !at.IsZero() && time.Until(at) < leastLife {
		return ended(at)
	}
	_, err := c.own.Server.ListTokens(ctx, connect.NewRequest(&v1.ListTokensRequest{Page: &v1.Page{Size: 1}}))
	if turnstone.KindOf(err) == turnstone.KindExhausted {
		return nil // it answers, and others ask much
	}
	return err
}

// Successor returns a successor of the operator's token, and the token that it succeeds, when half of its
// life is over; before that, both are empty. The old token stays valid until its own end, so nothing is lost
// if the successor is.
func (c *Client) Successor(ctx context.Context) (old, successor string, err error) {
	old, is, known, err := c.o.read()
	if err != nil {
		return "", "", err
	}
	scopes := strings.Fields(is.Scope)
	if !known || is.Issued <= 0 || !slices.Contains(scopes, string(auth.TokensRenew)) {
		return "", "", turnstone.Errorf("kube.renew", turnstone.KindDenied, "the operator's token",
			"does not grant the scope %s", auth.TokensRenew).
			WithHint("make one with this scope at the server, or replace it by hand before its end")
	}
	life := is.ends().Sub(is.issued())
	if time.Until(is.ends()) > life/2 {
		return "", "", nil
	}
	a, err := c.own.Server.CreateToken(ctx, connect.NewRequest(&v1.CreateTokenRequest{Name: "operator",
		Subject: is.Subject, Tenant: is.Tenant, Scopes: scopes, Sessions: is.Sessions, Templates: is.Templates,
		Ttl: durationpb.New(life)}))
	if err != nil {
		return "", "", err
	}
	return old, a.Msg.Secret, nil
}

// subjectPrefix begins the subjects of tokens for tenants: the namespace follows.
const subjectPrefix = "kubernetes namespace "

// Tenants implements agents.Tenants: the namespaces for which tokens were made, of which the server forgets
// those that ended long ago.
func (c *Client) Tenants(ctx context.Context) (all []string, err error) {
	page := &v1.Page{}
	for range maxPages {
		a, err := c.own.Server.ListTokens(ctx, connect.NewRequest(&v1.ListTokensRequest{Page: page}))
		if err != nil {
			return nil, err
		}
		for _, t := range a.Msg.Tokens {
			if t.Subject == subjectPrefix+t.Tenant {
				all = append(all, t.Tenant)
			}
		}
		slices.Sort(all)
		all = slices.Compact(all)
		if page.Token = a.Msg.NextPageToken; page.Token == "" {
			return all, nil
		}
	}
	return all, nil
}
