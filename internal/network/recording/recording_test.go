package recording

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/network"
)

func TestDecodeRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		index string
		size  int64
		kind  turnstone.Kind
	}{
		"nothing":     {"", 0, turnstone.KindIntegrity},
		"newer":       {`{"format":2}`, 0, turnstone.KindUnavailable},
		"other bytes": {`{"format":1,"bytes":5}`, 4, turnstone.KindIntegrity},
		"beyond": {`{"format":1,"bytes":5,"streams":[{"pieces":[{"at":3,"size":3}]}]}`, 5,
			turnstone.KindIntegrity},
		"negative": {`{"format":1,"bytes":5,"streams":[{"pieces":[{"at":-1,"size":3}]}]}`, 5,
			turnstone.KindIntegrity},
		"wraps": {`{"format":1,"bytes":5,"requests":[{"status":200,"response":[{"at":1,"size":9223372036854775807}]}]}`, 5, turnstone.KindIntegrity},
		"status of a failed answer": {
			`{"format":1,"requests":[{"status":42,"failed":"cut off"}]}`, 0,
			turnstone.KindIntegrity},
		"status": {`{"format":1,"requests":[{"status":99}]}`, 0, turnstone.KindIntegrity},
		"header": {`{"format":1,"requests":[{"status":200,"header":{"A":["b\r\nc: d"]}}]}`, 0,
			turnstone.KindIntegrity},
		"header name": {`{"format":1,"requests":[{"status":200,"header":{"A\r\nb":["c"]}}]}`, 0,
			turnstone.KindIntegrity},
		"many lookups": {`{"format":1,"lookups":[` + strings.Repeat("{},", maxEntries) + `{}]}`, 0,
			turnstone.KindIntegrity},
	} {
		if _, err := Decode([]byte(c.index), c.size); turnstone.KindOf(err) != c.kind {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzRecording plays every recording that can be decoded.
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
			_, _, _ = p.Lookup(rec.Lookups[i].Network, rec.Lookups[i].Name)
		}
		for i := range rec.Answers {
			if a := p.Answer(rec.Answers[i].Method, rec.Answers[i].URL,
				rec.Answers[i].Body); a != nil {
				if n, err := io.Copy(io.Discard, p.Body(a)); err != nil || n != a.Size() {
					t.Errorf("a body of %d: %d, %v", a.Size(), n, err)
				}
			}
		}
		for i := range min(4, len(rec.Streams)) {
			s := p.Next(rec.Streams[i].Host, rec.Streams[i].Address, rec.Streams[i].Opened)
			if s == nil {
				continue
			}
			guest, ours := net.Pipe()
			go func() {
				//wait: it ends what a player leaves open; no check needs it
				_ = guest.SetDeadline(time.Now().Add(time.Second))
				go func() { _, _ = io.Copy(io.Discard, guest) }()
				_, _ = guest.Write(said)
				guest.Close()
			}()
			_ = p.Play(ours, s)
			ours.Close()
		}
	})
}

// TestPlayerRules checks that a recording's rules open its destinations, and only single ports of
// the host's loopback.
func TestPlayerRules(t *testing.T) {
	rec := &Recording{Format: recordingFormat,
		Answers: []Request{{Address: netip.MustParseAddrPort("10.0.2.2:8080")},
			{Address: netip.MustParseAddrPort("10.1.2.3:80")}},
		Lookups: []Lookup{{Name: "a", Addresses: []netip.Addr{netip.MustParseAddr("192.168.1.1"),
			netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("10.1.2.3")}}}}
	var got []string
	for _, r := range NewPlayer(rec, nil, nil).Rules(10) {
		got = append(got, r.String())
	}
	if s := strings.Join(got, " "); s != "127.0.0.1:8080 10.1.2.3 192.168.1.1" {
		t.Errorf("%s", s)
	}
	if err := (network.Policy{Allow: NewPlayer(rec, nil, nil).Rules(10)}).Validate(); err != nil {
		t.Error(err)
	}
}

// TestIndexOfManyValues checks that a small index does not become a large Recording.
func TestIndexOfManyValues(t *testing.T) {
	index := `{"format":1,"streams":[{"pieces":[{}` + strings.Repeat(",{}", maxValues/2) + `]}]}`
	if _, err := Decode([]byte(index), 0); err == nil || !strings.Contains(err.Error(), "values") {
		t.Error(err)
	}
	r := &Recording{Format: recordingFormat,
		Answers: []Request{{Method: "GET", URL: `http://a/?"\{[,`, Status: 200}}}
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	if n := values(b); n > 10 {
		t.Errorf("%d values in %s", n, b)
	}
	if _, err := Decode(b, 0); err != nil {
		t.Error(err)
	}
}
