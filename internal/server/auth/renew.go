package auth

import (
	"slices"
	"strings"
)

// A token with the scope TokensRenew may be used to make its successor: a token that grants the same to
// the same subject, and ends later. All successors descend from the first token, and from no other one,
// so a revocation of the first one ends all of them, however many there were.

// successorMark separates the ID of the first token from what tells its successors apart. The ID of no
// other token of the server's own has it.
const successorMark = "."

// FirstID returns the ID of the first token of an own token's succession: its own if it has none.
func FirstID(id string) string {
	first, _, _ := strings.Cut(id, successorMark)
	return first
}

// Succeeds reports whether claims are those of a successor of the principal's token, which the issuer
// called server has signed, and which may have one.
func (p Principal) Succeeds(server string, c Claims) bool {
	return p.Issuer == server && p.Has(TokensIssue) && p.Has(TokensRenew) && !p.Expires.IsZero() &&
		c.Expires.After(p.Expires) && c.Tenant == p.Tenant && c.Subject == p.Subject && c.Sandbox == p.Sandbox &&
		same(c.Scopes, p.Scopes) && same(c.Sessions, p.Sessions) && same(c.Templates, p.Templates)
}

// same reports whether two lists have the same elements, whatever their order.
func same[T ~string](a, b []T) bool {
	a, b = slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b))
	return slices.Equal(slices.Compact(a), slices.Compact(b))
}

// Succession returns the first token's ID and the ancestors of a successor of the principal's token. The
// error is that of Lineage.
func (p Principal) Succession() (first string, ancestors []Ancestor, err error) {
	first = FirstID(p.TokenID)
	if first != p.TokenID { // a successor itself: the first token is the last of its ancestors
		return first, p.Ancestors, nil
	}
	ancestors, err = p.Lineage()
	return first, ancestors, err
}
