package remote

import (
	"encoding/base64"
	"slices"
	"strings"
	"testing"
	"time"
)

func token(claims string) string {
	return "e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".c2lnbmF0dXJl"
}

// TestClaims: what a token says of itself is read, and is a line of text whatever it says.
func TestClaims(t *testing.T) {
	c, has := claimsOf(token(`{"exp":1790000000,"scope":"turns:run sessions:*","tenant":"acme"}`))
	if !has || !c.Expires.Equal(time.Unix(1790000000, 0)) || c.Tenant != "acme" ||
		!slices.Equal(c.Scopes, []string{"turns:run", "sessions:*"}) {
		t.Errorf("%v %+v", has, c)
	}
	c, has = claimsOf(token(`{"exp":1e300,"scope":"a` + "\\u001b[2J" + strings.Repeat(" b", 1000) +
		`","tenant":"` + strings.Repeat("t", 4000) + `"}`))
	if !has || !c.Expires.IsZero() || len(c.Scopes) != maxScope || strings.Contains(c.Scopes[0], "\x1b") ||
		len(c.Tenant) > maxScope {
		t.Errorf("%v %+v", has, c)
	}
	for _, bad := range []string{"", "opaque", "a.b", "..", "e30.!!.e30", token("[]"), token("{"),
		token(`{"tenant":"` + strings.Repeat("t", maxClaims) + `"}`), strings.Repeat("x.", maxToken)} {
		if c, has := claimsOf(bad); has {
			t.Errorf("%.40q: %+v", bad, c)
		}
	}
}
