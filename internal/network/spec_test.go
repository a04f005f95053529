package network

import (
	"bytes"
	"encoding/json"
	"testing"
)

func TestSpec(t *testing.T) {
	var none *Spec
	if p, err := none.Policy(); err != nil || p.Only || !none.Same(&Spec{}) || none.Bare() != nil {
		t.Errorf("none: %v %v", p, err)
	}
	h, err := ParseSecretHeader("a.example=X: sesame-open")
	if err != nil {
		t.Fatal(err)
	}
	s := &Spec{Allow: []string{"public", "10.0.0.0/8"}, Only: true,
		Deny: []string{"*.example.org:443"}, Headers: []SecretHeader{h}}
	p, err := s.Policy()
	if err != nil || p.Only || len(p.Allow) != 1 || len(p.Deny) != 1 {
		t.Errorf("%+v %v", p, err)
	}
	b, _ := json.Marshal(s.Bare())
	if bytes.Contains(b, []byte("sesame")) || !s.Same(s.Bare()) ||
		s.Headers[0].Value != "sesame-open" {
		t.Errorf("bare: %s", b)
	}
	for _, bad := range []Spec{{Allow: []string{"a b"}}, {Deny: []string{"public"}}, {DNS: "x"}} {
		if _, err := bad.Policy(); err == nil && bad.Deny == nil {
			t.Errorf("%+v is no error", bad)
		}
	}
}
