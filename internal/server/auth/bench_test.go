package auth

import (
	"testing"

	jose "github.com/go-jose/go-jose/v4"
)

// BenchmarkVerify verifies an own token; most of it is the signature.
func BenchmarkVerify(b *testing.B) {
	s := newSetup(b)
	token := s.issue(b, s.usual()).Token.Reveal()
	b.ReportAllocs()
	for b.Loop() {
		s.accepted(b, token)
	}
}

// BenchmarkVerifyOIDC verifies a token of an issuer whose keys are known.
func BenchmarkVerifyOIDC(b *testing.B) {
	x := newIDP(b)
	s := newSetup(b, trusts(x))
	k := newSigningKey(b, "k", jose.RS256)
	x.has(k)
	token := k.sign(b, s, x.URL)
	b.ReportAllocs()
	for b.Loop() {
		s.accepted(b, token)
	}
}

// BenchmarkRefuse refuses a token of 1 MB.
func BenchmarkRefuse(b *testing.B) {
	s := newSetup(b)
	token := string(make([]byte, 1<<20))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.verifier.Verify(b.Context(), token); err == nil {
			b.Fatal("accepted")
		}
	}
}

// BenchmarkCheck decides about an object.
func BenchmarkCheck(b *testing.B) {
	p := someone()
	b.ReportAllocs()
	for b.Loop() {
		check(b, p.Check(Request{Scope: SandboxesRead, Sandbox: box}, string(box),
			Owner{Tenant: "acme", Session: "ci-1", Sandbox: box}))
	}
}
