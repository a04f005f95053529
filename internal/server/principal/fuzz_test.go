package principal

import (
	"net/http"
	"testing"
	"time"

	"turnstone.dev/turnstone/internal/server/auth"
)

// FuzzFrom reads the field that says who opens a channel. A field that is not a gateway's grants
// nothing, and a principal is the same after another gateway has passed it on.
func FuzzFrom(f *testing.F) {
	h := http.Header{}
	for _, p := range []auth.Principal{{}, {Issuer: "https://a", Tenant: "t", Subject: "s",
		TokenID: "tk_1", Expires: time.Unix(1_800_000_000, 0).UTC(),
		Scopes: []auth.Scope{auth.TurnsRun}, Sessions: []auth.Pattern{"ci-*"},
		Templates: []auth.Pattern{auth.Any}, Sandbox: "sb_000000000000000001"}} {
		if err := Set(h, p); err != nil {
			f.Fatal(err)
		}
		f.Add(h.Get(Header))
	}
	f.Add("%")
	f.Add("_____w")
	f.Add("SgYI_____w8") // an expiry with no such nanoseconds
	f.Fuzz(func(t *testing.T, text string) {
		p := From(http.Header{Header: {text}})
		again, third := http.Header{}, http.Header{}
		if Set(again, p) != nil {
			return // larger than any token, or no text: no gateway passes it on
		}
		if err := Set(third, From(again)); err != nil || third.Get(Header) != again.Get(Header) {
			t.Fatalf("%v: %+v became %+v", err, p, From(again))
		}
	})
}
