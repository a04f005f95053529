package network

import (
	"bytes"
	"encoding/json"
	"testing"
	"turnstone.dev/turnstone"
)

func TestSpec(t *testing.T) {
	var none *turnstone.NetworkSpec
	if p, err := PolicyOf(none); err != nil || p.Only || !none.Same(&turnstone.NetworkSpec{}) ||
		none.Bare() != nil {
		t.Errorf("none: %v %v", p, err)
	}
	h, err := ParseSecretHeader("a.example=X: sesame-open")
	if err != nil {
		t.Fatal(err)
	}
	s := &turnstone.NetworkSpec{Allow: []string{"public", "10.0.0.0/8"}, Only: true,
		Deny: []string{"*.example.org:443"}, Headers: []turnstone.SecretHeader{h}}
	p, err := PolicyOf(s)
	if err != nil || p.Only || len(p.Allow) != 1 || len(p.Deny) != 1 {
		t.Errorf("%+v %v", p, err)
	}
	b, _ := json.Marshal(s.Bare())
	if bytes.Contains(b, []byte("sesame")) || !s.Same(s.Bare()) ||
		s.Headers[0].Value != "sesame-open" {
		t.Errorf("bare: %s", b)
	}
	for _, bad := range []turnstone.NetworkSpec{{Allow: []string{"a b"}},
		{Deny: []string{"public"}}, {DNS: "x"}} {
		if _, err := PolicyOf(&bad); err == nil && bad.Deny == nil {
			t.Errorf("%+v is no error", bad)
		}
	}
}
