package auth

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"errors"
	"fmt"
	"slices"

	jose "github.com/go-jose/go-jose/v4"

	"turnstone.dev/turnstone"
)

var (
	errMissing = errors.New("is missing")
	errTime    = errors.New("is not a number of seconds")
	errName    = errors.New("is not a valid name")
)

// The kinds of keys.
const (
	edwards = iota + 1
	elliptical
	rivest
)

// supported are the algorithms that an issuer may use, with the keys that fit. All are asymmetric:
// whoever can verify a token cannot make one.
var supported = map[string]struct {
	kind  int
	curve elliptic.Curve
}{
	"EdDSA": {kind: edwards},
	"ES256": {elliptical, elliptic.P256()},
	"ES384": {elliptical, elliptic.P384()},
	"ES512": {elliptical, elliptic.P521()},
	"RS256": {kind: rivest}, "RS384": {kind: rivest}, "RS512": {kind: rivest},
	"PS256": {kind: rivest}, "PS384": {kind: rivest}, "PS512": {kind: rivest},
}

// Algorithms returns the names of the algorithms that an issuer's allow-list can have.
func Algorithms() []string {
	var all []string
	for name := range supported {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

// checkAlgorithms reports an allow-list that is empty, or has what is not supported.
func checkAlgorithms(list []string) error {
	if len(list) == 0 {
		return turnstone.Errorf("auth.issuer", turnstone.KindInvalid, "algorithms", "are missing")
	}
	for _, a := range list {
		if supported[a].kind == 0 {
			return turnstone.Errorf("auth.issuer", turnstone.KindInvalid, "algorithms",
				"%.40q is not accepted", a).
				WithHint(fmt.Sprintf("use some of %q", Algorithms()))
		}
	}
	return nil
}

// Sizes of RSA keys, in bits. A larger one would make each verification expensive.
const (
	minRSA = 2048
	maxRSA = 8192
)

// A verifying key is a public key of an issuer.
type verifyingKey struct {
	key any    // ed25519.PublicKey, *ecdsa.PublicKey or *rsa.PublicKey
	alg string // the only algorithm; empty: those that fit the key
}

// usable reports why a key cannot verify anything.
func usable(key any) error {
	switch k := key.(type) {
	case ed25519.PublicKey:
		if len(k) != ed25519.PublicKeySize {
			return errors.New("has a wrong size")
		}
	case *ecdsa.PublicKey:
		if _, err := k.ECDH(); err != nil { // a point on one of the curves of NIST
			return errors.New("is not on its curve")
		}
	case *rsa.PublicKey:
		if n := k.N.BitLen(); n < minRSA || n > maxRSA {
			return fmt.Errorf("has %d bits; %d to %d are allowed", n, minRSA, maxRSA)
		}
		// The usual exponent is 65537; a long one makes a verification expensive.
		if k.E < 3 || k.E%2 == 0 || int64(k.E) > 1<<31-1 {
			return errors.New("has an exponent that is not allowed")
		}
	default:
		return errors.New("is of a type that is not supported")
	}
	return nil
}

// fits reports whether the key is one for an algorithm. It keeps a token from choosing how a key is
// used.
func (k verifyingKey) fits(alg string) bool {
	if k.alg != "" && k.alg != alg {
		return false
	}
	want := supported[alg]
	switch key := k.key.(type) {
	case ed25519.PublicKey:
		return want.kind == edwards
	case *ecdsa.PublicKey:
		return want.kind == elliptical && key.Curve == want.curve
	case *rsa.PublicKey:
		return want.kind == rivest
	}
	return false
}

// signed reports a token that the key did not sign.
func (p *parsed) signed(k verifyingKey) error {
	fail := refuse("auth.verify", Forged, "has a signature that is not of its issuer's key")
	if !k.fits(p.alg) {
		return refuse("auth.verify", Algorithm, "is signed with %s, which its key is not for",
			p.alg)
	}
	// The library's errors are left out: they may quote the token.
	jws, err := jose.ParseSignedCompact(p.raw, []jose.SignatureAlgorithm{
		jose.SignatureAlgorithm(p.alg)})
	if err != nil {
		return fail
	}
	payload, err := jws.Verify(k.key)
	if err != nil || string(payload) != string(p.payload) {
		return fail
	}
	return nil
}
