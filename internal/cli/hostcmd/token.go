package hostcmd

import (
	"context"
	"encoding/hex"
	"errors"
	"io"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/remote"
	"turnstone.dev/turnstone/internal/terminal"
)

// TokenCmd has the commands below turn token.
type TokenCmd struct {
	Create createCmd  `cmd:"" help:"Create a token for the API, and print it."`
	Ls     tokenLsCmd `cmd:"" help:"List tokens, without their secrets."`
	Revoke revokeCmd  `cmd:"" help:"End tokens before their time."`
}

// withServer calls f with the current host, or with the server of this machine.
func withServer(a *cli.App, f func(ctx context.Context, s *remote.Server) error) error {
	return a.Do(func(ctx context.Context) error {
		s, err := a.Server(ctx)
		if err == nil && s == nil {
			s, err = a.OperatorServer(ctx)
		}
		if err != nil {
			return err
		}
		return errors.Join(f(ctx, s), s.Close())
	})
}

// A TokenReport describes a token.
type TokenReport struct {
	ID      string    `json:"id"`
	Name    string    `json:"name"`
	Tenant  string    `json:"tenant"`
	Subject string    `json:"subject"`
	Scopes  []string  `json:"scopes"`
	Created time.Time `json:"created,omitzero"`
	Expires time.Time `json:"expires,omitzero"`
	Revoked bool      `json:"revoked"`
}

// A CreatedToken is the output of turn token create.
type CreatedToken struct {
	TokenReport
	Token string `json:"token"` // the secret, which is shown once
}

// A TokensReport is the output of turn token ls.
type TokensReport struct {
	Tokens []TokenReport `json:"tokens"`
}

func tokenReport(t *v1.Token) TokenReport {
	r := TokenReport{ID: t.GetTokenId(), Name: t.GetName(), Tenant: t.GetTenant(),
		Subject: t.GetSubject(), Scopes: append([]string{}, t.GetScopes()...),
		Revoked: t.GetRevoked()}
	if t.GetCreated() != nil {
		r.Created = t.GetCreated().AsTime()
	}
	if t.GetExpires() != nil {
		r.Expires = t.GetExpires().AsTime()
	}
	return r
}

type createCmd struct {
	Name     string        `required:"" help:"Name of the token, for turn token ls." placeholder:"NAME"`
	TTL      time.Duration `name:"ttl" default:"24h" help:"Time to its end (default: 24h)." placeholder:"24h"`
	Scope    []string      `help:"Grant this right (repeatable)." placeholder:"SERVICE:ACTION" sep:","`
	Session  []string      `help:"Only for sessions of this pattern (repeatable)." placeholder:"PATTERN" sep:"none"`
	Template []string      `help:"Only for templates of this pattern (repeatable)." placeholder:"PATTERN" sep:"none"`
	Tenant   string        `help:"Create it for this tenant." placeholder:"NAME"`
	Subject  string        `help:"Whom the token is for (default: its name)." placeholder:"TEXT"`
	E2B      bool          `name:"e2b" help:"Print it in the form of E2B's API keys."`
	JSON     bool          `name:"json" help:"Print JSON."`
}

// Help is shown below the flags' summary.
func (c *createCmd) Help() string {
	return `The token is printed once and stored nowhere. It grants at most what your own token
grants; on the server's own machine, the operator's socket needs no token. Without
--scope it may use turns, sandboxes, sessions, templates and usage, and list nodes.
Rights are such as turns:run, sandboxes:* and tokens:issue.`
}

// Examples returns command lines for the help.
func (c *createCmd) Examples() []string {
	return []string{
		"turn token create --name ci --ttl 24h",
		"turn token create --name nightly --scope turns:run,turns:read --session 'ci-*'",
	}
}

// Validate is called by kong.
func (c *createCmd) Validate() error {
	if c.TTL < time.Second {
		return errors.New("--ttl: a token lives for 1s at least, and as long as the server's " +
			"tokens.longest (2160h by default) at most")
	}
	return nil
}

// Run creates the token.
func (c *createCmd) Run(a *cli.App) error {
	return withServer(a, func(ctx context.Context, s *remote.Server) error {
		answer, err := s.Server.CreateToken(ctx, connect.NewRequest(&v1.CreateTokenRequest{
			Name: c.Name, Ttl: durationpb.New(c.TTL), Tenant: c.Tenant, Subject: c.Subject,
			Scopes: c.Scope, Sessions: c.Session, Templates: c.Template}))
		if err != nil {
			return err
		}
		made := CreatedToken{tokenReport(answer.Msg.Token), answer.Msg.Secret}
		if c.E2B {
			made.Token = "e2b_" + hex.EncodeToString([]byte(made.Token))
		}
		return a.Result(made, nil, func(w io.Writer) { terminal.Println(w, made.Token) })
	})
}

type tokenLsCmd struct {
	JSON bool `name:"json" help:"Print JSON."`
}

// maxPages bounds the pages of a list.
const maxPages = 1000

// Run lists the tokens.
func (c *tokenLsCmd) Run(a *cli.App) error {
	return withServer(a, func(ctx context.Context, s *remote.Server) error {
		all, err := allTokens(ctx, s)
		if err != nil {
			return err
		}
		return a.Result(TokensReport{all}, nil, func(w io.Writer) {
			terminal.List(w, false, "ID\tNAME\tTENANT\tEXPIRES\tSTATUS", all,
				func(t TokenReport) []any {
					return []any{t.ID, t.Name, t.Tenant, t.Expires.UTC().Format(time.RFC3339),
						t.status()}
				})
		})
	})
}

// allTokens returns the tokens that the caller may list.
func allTokens(ctx context.Context, s *remote.Server) ([]TokenReport, error) {
	all, page := []TokenReport{}, &v1.Page{Size: 100}
	for range maxPages {
		answer, err := s.Server.ListTokens(ctx, connect.NewRequest(&v1.ListTokensRequest{Page: page}))
		if err != nil {
			return nil, err
		}
		for _, t := range answer.Msg.Tokens {
			all = append(all, tokenReport(t))
		}
		page.Token = answer.Msg.NextPageToken
		if page.Token == "" {
			break
		}
	}
	return all, nil
}

func (t TokenReport) status() string {
	switch {
	case t.Revoked:
		return "revoked"
	case !t.Expires.IsZero() && time.Now().After(t.Expires):
		return "expired"
	}
	return "valid"
}

type revokeCmd struct {
	Token []string `arg:"" name:"token" help:"IDs or names of tokens, as turn token ls prints them."`
	JSON  bool     `name:"json" help:"Print JSON."`
}

// Help is shown below the flags' summary.
func (c *revokeCmd) Help() string {
	return `Tokens that were made with a revoked token end with it, and so do those of its
sandboxes. A name that several valid tokens have is an error that lists their IDs.`
}

// Run revokes the tokens.
func (c *revokeCmd) Run(a *cli.App) error {
	return withServer(a, func(ctx context.Context, s *remote.Server) error {
		rep := cli.RemovedReport{Removed: []string{}}
		var known []TokenReport
		for _, ref := range c.Token {
			id := ref
			if !isTokenID(ref) {
				var err error
				if known == nil {
					known, err = allTokens(ctx, s)
				}
				// without the right to list tokens, it can only be an ID
				if err == nil {
					id, err = tokenNamed(known, ref)
				} else if turnstone.KindOf(err) == turnstone.KindDenied {
					err = nil
				}
				if err != nil {
					return a.Partial(rep, err)
				}
			}
			if _, err := s.Server.RevokeToken(ctx, connect.NewRequest(&v1.RevokeTokenRequest{
				TokenId: id})); err != nil {
				if turnstone.KindOf(err) == turnstone.KindNotFound {
					err = turnstone.NewError("token.revoke", turnstone.KindNotFound, "", err).
						WithHint("list the tokens with turn token ls: a name is that of a valid token")
				}
				return a.Partial(rep, err)
			}
			rep.Removed = append(rep.Removed, id)
		}
		return a.Result(rep, nil, nil)
	})
}

// isTokenID reports whether text has the form of the IDs that servers give.
func isTokenID(text string) bool {
	rest, ok := strings.CutPrefix(text, "tk_")
	return ok && len(rest) == 26 && strings.Trim(rest, "abcdefghijklmnopqrstuvwxyz234567") == ""
}

// tokenNamed returns the ID of the token with this ID, else of the valid one with this name. What is
// neither may be a token's text, so it is not repeated.
func tokenNamed(all []TokenReport, ref string) (string, error) {
	var ids []string
	for _, t := range all {
		if t.ID == ref {
			return ref, nil
		}
		if t.Name == ref && t.status() == "valid" {
			ids = append(ids, t.ID)
		}
	}
	switch len(ids) {
	case 0:
		return ref, nil // the server knows better
	case 1:
		return ids[0], nil
	}
	return "", turnstone.Errorf("token.revoke", turnstone.KindInvalid, "token "+ref,
		"%d valid tokens have this name: %s", len(ids), strings.Join(ids, ", ")).
		WithHint("name the ID of one, or all of them")
}
