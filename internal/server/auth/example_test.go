package auth_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"turnstone.dev/turnstone/internal/server/auth"
)

// register keeps revocations in memory; the controller's is in its database.
type register struct {
	list   []auth.Revocation
	number uint64
}

func (r *register) Revoke(_ context.Context, list ...auth.Revocation) error {
	r.list = append(r.list, list...)
	return nil
}

func (r *register) Revocations(context.Context, time.Time) ([]auth.Revocation, error) {
	return r.list, nil
}

func (r *register) Number(context.Context) (uint64, error) { r.number++; return r.number, nil }

// A controller issues a token and revokes it; a gateway verifies it and asks what it grants.
func Example() {
	ctx, clock, name := context.Background(), auth.SystemClock(), "https://turn.example.org"
	dir, err := os.MkdirTemp("", "auth")
	must(err)
	defer func() { must(os.RemoveAll(dir)) }()

	// The controller.
	issuer, err := auth.OpenIssuer(ctx, name, filepath.Join(dir, "keys", "token"), clock)
	must(err)
	publisher, err := auth.NewPublisher(ctx, issuer, &register{})
	must(err)

	// The gateway.
	verifier, err := auth.NewVerifier(auth.VerifierConfig{Name: name, Clock: clock})
	must(err)
	defer func() { must(verifier.Close()) }()
	_, err = publisher.Follow(verifier)
	must(err)

	issued, err := issuer.Issue(ctx, auth.Claims{Tenant: "acme", Subject: "ci",
		Scopes: []auth.Scope{auth.TurnsRun}, Sessions: []auth.Pattern{"ci-*"},
		Templates: []auth.Pattern{auth.Any}, Expires: clock.Now().Add(24 * time.Hour)})
	must(err)
	fmt.Println("in a log:", issued.Token)

	caller, err := verifier.Verify(ctx, issued.Token.Reveal())
	must(err)
	fmt.Println(caller.Tenant, caller.Subject)
	fmt.Println(caller.Allow(auth.Request{Scope: auth.TurnsRun, Session: "ci-7"}))
	fmt.Println(caller.Allow(auth.Request{Scope: auth.TurnsRun, Session: "research"}))
	fmt.Println(caller.See("session.get", "session ci-7", auth.Owner{Tenant: "other"}))

	must(publisher.Revoke(ctx, auth.Revocation{Issuer: name, TokenID: issued.ID,
		Until: issued.Expires}))
	_, err = verifier.Verify(ctx, issued.Token.Reveal())
	fmt.Println(auth.ReasonOf(err), "-", err)

	// Output:
	// in a log: [token]
	// acme ci
	// <nil>
	// the token: does not grant the session "research"
	// session ci-7: does not exist
	// revoked - the token: is revoked
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
