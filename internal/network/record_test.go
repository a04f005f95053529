package network

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
)

func TestDecodeRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		index string
		size  int64
		kind  turnstone.Kind
	}{
		"nothing":      {"", 0, turnstone.KindIntegrity},
		"newer":        {`{"format":2}`, 0, turnstone.KindUnavailable},
		"other bytes":  {`{"format":1,"bytes":5}`, 4, turnstone.KindIntegrity},
		"beyond":       {`{"format":1,"bytes":5,"streams":[{"pieces":[{"at":3,"size":3}]}]}`, 5, turnstone.KindIntegrity},
		"negative":     {`{"format":1,"bytes":5,"streams":[{"pieces":[{"at":-1,"size":3}]}]}`, 5, turnstone.KindIntegrity},
		"wraps":        {`{"format":1,"bytes":5,"requests":[{"status":200,"response":[{"at":1,"size":9223372036854775807}]}]}`, 5, turnstone.KindIntegrity},
		"status":       {`{"format":1,"requests":[{"status":99}]}`, 0, turnstone.KindIntegrity},
		"header":       {`{"format":1,"requests":[{"status":200,"header":{"A":["b\r\nc: d"]}}]}`, 0, turnstone.KindIntegrity},
		"header name":  {`{"format":1,"requests":[{"status":200,"header":{"A\r\nb":["c"]}}]}`, 0, turnstone.KindIntegrity},
		"many lookups": {`{"format":1,"lookups":[` + strings.Repeat("{},", maxEntries) + `{}]}`, 0, turnstone.KindIntegrity},
	} {
		if _, err := Decode([]byte(c.index), c.size); turnstone.KindOf(err) != c.kind {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzRecording plays whatever can be decoded.
func FuzzRecording(f *testing.F) {
	f.Add([]byte(`{"format":1,"bytes":9,"lookups":[{"network":"ip4","name":"a.example","addresses":["192.0.2.1"]}],
		"streams":[{"host":"a.example","address":"192.0.2.1:25","protocol":"tcp","pieces":[{"at":0,"size":3},{"sent":true,"at":3,"size":2},{"at":5,"size":4}]}],
		"requests":[{"method":"GET","url":"http://a.example/","address":"192.0.2.1:80","body":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","status":200,"header":{"A":["b"]},"response":[{"at":2,"size":5}]}]}`),
		[]byte("123456789"), []byte("45"))
	f.Fuzz(func(t *testing.T, index, data, said []byte) {
		rec, err := Decode(index, int64(len(data)))
		if err != nil {
			return
		}
		p := NewPlayer(rec, bytes.NewReader(data), nil)
		_ = p.Rules(100)
		for i := range rec.Lookups {
			_, _, _ = p.lookup(rec.Lookups[i].Network, rec.Lookups[i].Name)
		}
		for i := range rec.Answers {
			if a := p.answer(rec.Answers[i].Method, rec.Answers[i].URL, rec.Answers[i].Body); a != nil {
				if n, err := io.Copy(io.Discard, p.body(a)); err != nil || n != a.size() {
					t.Errorf("a body of %d: %d, %v", a.size(), n, err)
				}
			}
		}
		for i := range min(4, len(rec.Streams)) {
			s := p.next(rec.Streams[i].Host, rec.Streams[i].Address, rec.Streams[i].Opened)
			if s == nil {
				continue
			}
			guest, ours := net.Pipe()
			go func() {
				_ = guest.SetDeadline(time.Now().Add(time.Second))
				go func() { _, _ = io.Copy(io.Discard, guest) }()
				_, _ = guest.Write(said)
				guest.Close()
			}()
			_ = p.play(ours, s)
			ours.Close()
		}
	})
}

// TestPlayerRules opens what is in a recording, and of the host's loopback single ports only.
func TestPlayerRules(t *testing.T) {
	rec := &Recording{Format: RecordFormat,
		Answers: []RecordedRequest{{Address: netip.MustParseAddrPort("10.0.2.2:8080")}, {Address: netip.MustParseAddrPort("10.1.2.3:80")}},
		Lookups: []RecordedLookup{{Name: "a", Addresses: []netip.Addr{netip.MustParseAddr("192.168.1.1"), netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("10.1.2.3")}}}}
	var got []string
	for _, r := range NewPlayer(rec, nil, nil).Rules(10) {
		got = append(got, r.String())
	}
	if s := strings.Join(got, " "); s != "127.0.0.1:8080 10.1.2.3 192.168.1.1" {
		t.Errorf("%s", s)
	}
	if _, err := New(Options{Policy: Policy{Allow: NewPlayer(rec, nil, nil).Rules(10)}}); err != nil {
		t.Error(err)
	}
}

func TestCA(t *testing.T) {
	ca, other := testCA(t), testCA(t)
	block, _ := pem.Decode(ca.PEM())
	if block == nil || bytes.Equal(ca.PEM(), other.PEM()) {
		t.Fatal("no certificate of its own")
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.PEM())
	for _, host := range []string{"api.example.com", "192.0.2.1", "2001:db8::1"} {
		leaf, err := ca.Leaf(strings.ToUpper(host))
		if err != nil {
			t.Errorf("%s: %v", host, err)
			continue
		}
		if _, err := leaf.Leaf.Verify(x509.VerifyOptions{DNSName: host, Roots: roots}); err != nil {
			t.Errorf("%s: %v", host, err)
		}
		if _, err := leaf.Leaf.Verify(x509.VerifyOptions{DNSName: "other.example.com", Roots: roots}); err == nil {
			t.Errorf("%s: good for another host", host)
		}
		if leaf.Leaf.IsCA {
			t.Errorf("%s: may sign others", host)
		}
	}
	for _, host := range []string{"", "a b", "*.example.com", strings.Repeat("a", 300)} {
		if _, err := ca.Leaf(host); turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Errorf("%.20q: %v", host, err)
		}
	}
	for i := range 3 * maxLeaves / 2 {
		if _, err := ca.Leaf("h" + strings.Repeat("x", i%50) + ".example.com"); err != nil {
			t.Fatal(err)
		}
	}
	if len(ca.leaves) > maxLeaves {
		t.Errorf("%d certificates are held", len(ca.leaves))
	}
}

func TestWatchIsBounded(t *testing.T) {
	w := NewWatch()
	for i := range 65_535 {
		w.Refused(Refusal{At: time.Now(), Protocol: "tcp", Address: netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), uint16(i)), Reason: "not in allow"})
	}
	w.Refused(Refusal{At: time.Now(), Protocol: "tcp", Address: netip.MustParseAddrPort("192.0.2.1:1"), Reason: "not in allow"})
	all, more := w.Take()
	total := more
	for _, r := range all {
		total += r.Count
	}
	if len(all) != maxWatched || total != 65_536 {
		t.Errorf("%d refusals are held, of %d", len(all), total)
	}
	f := Facts{Refused: all, More: more}
	f.Cut(10)
	if b, err := json.Marshal(f); err != nil || len(f.Refused) != 10 || f.More != 65_536-10-1 {
		t.Errorf("cut: %d, %d more: %s %v", len(f.Refused), f.More, b, err)
	}
	if all, more := w.Take(); len(all) != 0 || more != 0 {
		t.Error("told twice")
	}
}

func TestSpec(t *testing.T) {
	var none *Spec
	if p, err := none.Policy(); err != nil || p.Only || !none.Same(&Spec{}) || none.Bare() != nil {
		t.Errorf("none: %v %v", p, err)
	}
	s := &Spec{Allow: []string{"public", "10.0.0.0/8"}, Only: true, Deny: []string{"*.example.org:443"}, Headers: []SecretHeader{testHeader(t, "a.example=X: sesame-open")}}
	p, err := s.Policy()
	if err != nil || p.Only || len(p.Allow) != 1 || len(p.Deny) != 1 {
		t.Errorf("%+v %v", p, err)
	}
	b, _ := json.Marshal(s.Bare())
	if bytes.Contains(b, []byte("sesame")) || !s.Same(s.Bare()) || s.Headers[0].Value != "sesame-open" {
		t.Errorf("bare: %s", b)
	}
	for _, bad := range []Spec{{Allow: []string{"a b"}}, {Deny: []string{"public"}}, {DNS: "x"}} {
		if _, err := bad.Policy(); err == nil && bad.Deny == nil {
			t.Errorf("%+v is no error", bad)
		}
	}
}
