package auth

import (
	"net/url"
	"strings"

	"turnstone.dev/turnstone"
)

// MaxAncestors is how many tokens a token can descend from.
const MaxAncestors = 4

// An Ancestor is a token with which another token was made, directly or through others. A
// revocation of it, or of its key, ends the other token too.
type Ancestor struct{ Issuer, Key, TokenID string }

// maxAncestor bounds an encoded ancestor in bytes.
const maxAncestor = 3 * (3*maxText + 1)

// String encodes an ancestor, as it is in a token.
func (a Ancestor) String() string {
	return url.QueryEscape(a.Issuer) + " " + url.QueryEscape(a.Key) + " " +
		url.QueryEscape(a.TokenID)
}

// ancestors decodes the claim. Each element has one spelling.
func ancestors(words []string) ([]Ancestor, bool) {
	var all []Ancestor
	for _, w := range words {
		parts := strings.Split(w, " ")
		if len(parts) != 3 {
			return nil, false
		}
		var bad [3]error
		for i := range parts {
			parts[i], bad[i] = url.QueryUnescape(parts[i])
		}
		a := Ancestor{Issuer: parts[0], Key: parts[1], TokenID: parts[2]}
		if bad != [3]error{} || a.Issuer == "" || a.TokenID == "" || a.String() != w {
			return nil, false
		}
		all = append(all, a)
	}
	return all, true
}

// Lineage returns the ancestors of a token that the principal makes: those of its own token, and its
// own token. The operator has none. The error has the Reason Denied if there would be too many.
func (p Principal) Lineage() ([]Ancestor, error) {
	if p.Issuer == "" && p.TokenID == "" {
		return nil, nil
	}
	if len(p.Ancestors) >= MaxAncestors {
		return nil, refuse("token.issue", Denied,
			"descends from %d others, and cannot be used to make another one", len(p.Ancestors)).
			WithHint("use a token that was made with fewer others, or the operator's socket")
	}
	all := append([]Ancestor{}, p.Ancestors...)
	return append(all, Ancestor{Issuer: p.Issuer, Key: p.Key, TokenID: p.TokenID}), nil
}

// descends reports a token one of whose ancestors is revoked, or signed with a revoked key.
func (x *board) descends(all []Ancestor) error {
	for _, a := range all {
		if x.ends(a.Issuer, a.TokenID, a.Key) != nil {
			return refuse("auth.verify", Revoked, "was made with a token that is revoked")
		}
	}
	return nil
}

// encodeAncestors returns the claim. The error is of kind Invalid if a verifier would refuse it.
func encodeAncestors(all []Ancestor) ([]string, error) {
	var words []string
	for _, a := range all {
		words = append(words, a.String())
	}
	_, ok := ancestors(words)
	for _, w := range words {
		ok = ok && len(w) <= maxAncestor
	}
	if !ok || len(words) > MaxAncestors {
		return nil, turnstone.Errorf("token.issue", turnstone.KindInvalid, "the token",
			"has ancestors that it cannot name")
	}
	return words, nil
}
