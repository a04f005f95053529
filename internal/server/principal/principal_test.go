package principal

import (
	"math"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/server/auth"
)

func TestHeader(t *testing.T) {
	p := auth.Principal{Issuer: "https://a", Tenant: "t", Subject: "s\u00e9", TokenID: "tk_1",
		Expires: time.Unix(1_800_000_000, 0).UTC(), Scopes: []auth.Scope{auth.TurnsRun},
		Sessions: []auth.Pattern{"ci-*"}, Templates: []auth.Pattern{auth.Any},
		Sandbox: "sb_000000000000000001"}
	h := http.Header{}
	if err := Set(h, p); err != nil {
		t.Fatal(err)
	}
	if got := From(h); !reflect.DeepEqual(got, p) {
		t.Errorf("%+v", got)
	}
	grants := func(what string, h http.Header) {
		if got := From(h); len(got.Scopes) > 0 || got.Tenant != "" {
			t.Errorf("%s grants %+v", what, got)
		}
	}
	grants("none", http.Header{})
	h.Add(Header, h.Get(Header))
	grants("two", h)
	grants("no base64", http.Header{Header: {"%"}})
	grants("no message", http.Header{Header: {"_____w"}})
	grants("a long one", http.Header{Header: {strings.Repeat("A", MaxHeader+4)}})
	p.Sessions = nil
	for range 400 {
		p.Sessions = append(p.Sessions, auth.Pattern(strings.Repeat("x", 200)))
	}
	if Set(h, p) == nil {
		t.Error("a principal that no token has")
	}
}

// TestNoEndlessPrincipal checks that no time that a message has means that there is no end.
func TestNoEndlessPrincipal(t *testing.T) {
	for _, expires := range []*timestamppb.Timestamp{{}, timestamppb.New(time.Time{}), {Nanos: -1},
		{Seconds: math.MaxInt64}} {
		if p := Of(&v1.Principal{Expires: expires}); p.Expires.IsZero() ||
			p.Expires.After(time.Now()) {
			t.Errorf("%v is %v", expires, p.Expires)
		}
	}
	if p := Of(&v1.Principal{}); !p.Expires.IsZero() {
		t.Errorf("without a time: %v", p.Expires)
	}
}
