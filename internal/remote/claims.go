package remote

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"time"

	"turnstone.dev/turnstone/internal/api"
)

// Claims are what a token says of itself. This client does not verify them: the server does.
type Claims struct {
	Expires time.Time // zero: not said
	Scopes  []string
	Tenant  string
}

// Bounds of claims.
const (
	maxClaims = 8 << 10 // bytes that are read
	maxScope  = 64      // scopes, and bytes of one
)

// Claims returns the claims of the token, and whether there is a token that has readable claims. The
// token itself, and its signature, are in no result.
func (s *Server) Claims() (c Claims, has bool, err error) {
	if s.o.Token == nil {
		return c, false, nil
	}
	token, err := s.o.Token()
	if err != nil {
		return c, false, err
	}
	c, has = claimsOf(token)
	return c, has, nil
}

// claimsOf reads the claims of a token of RFC 7519.
func claimsOf(token string) (c Claims, has bool) {
	parts := strings.Split(token, ".")
	if len(token) > maxToken || len(parts) != 3 || len(parts[1]) > maxClaims {
		return c, false
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	var said struct {
		Expires float64 `json:"exp"`
		Scope   string  `json:"scope"`
		Tenant  string  `json:"tenant"`
	}
	if err != nil || json.Unmarshal(text, &said) != nil {
		return c, false
	}
	const last = 1 << 40 // a time that time.Time has
	if said.Expires > 0 && said.Expires < last {
		c.Expires = time.Unix(int64(said.Expires), 0)
	}
	for _, scope := range strings.Fields(said.Scope) {
		if len(c.Scopes) < maxScope {
			c.Scopes = append(c.Scopes, api.Clean(scope, maxScope))
		}
	}
	c.Tenant = api.Clean(said.Tenant, maxScope)
	return c, true
}
