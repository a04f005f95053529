package recording

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"turnstone.dev/turnstone/internal/secret"
)

// decoded encodes and decodes what r has recorded in data.
func decoded(t rapid.TB, r *Recorder, data *bytes.Buffer) *Recording {
	index, err := json.Marshal(r.Finish())
	if err != nil {
		t.Fatal(err)
	}
	rec, err := Decode(index, int64(data.Len()))
	if err != nil {
		t.Fatalf("%v: %.2000s", err, index)
	}
	return rec
}

// said is the traffic that a model of a Recorder expects.
type said struct {
	stream *StreamRecord
	runs   []saidRun

	request      *RequestRecord
	method, url  string
	status       int
	body         []byte
	whole, ended bool
}

type saidRun struct {
	sent bool
	b    []byte
}

var there = netip.MustParseAddrPort("192.0.2.1:80")

// drawTraffic gives r traffic of concurrent connections and requests.
func drawTraffic(t *rapid.T, r *Recorder) (all []*said) {
	bytesOf := rapid.SliceOfN(rapid.SampledFrom([]byte("ab-\x00\n\xff")), 0, 40)
	text := rapid.StringN(0, 10, 60)
	t.Repeat(map[string]func(*rapid.T){
		"connection": func(t *rapid.T) {
			host := fmt.Sprintf("h%d.example", len(all))
			all = append(all, &said{stream: r.Stream(Stream{Host: host, Address: there,
				Protocol: ProtocolTCP}), url: host})
		},
		"request": func(t *rapid.T) {
			s := &said{method: "GET", url: fmt.Sprintf("http://a.example/%d", len(all))}
			s.request = r.Request(s.method, s.url, there)
			all = append(all, s)
		},
		"bytes": func(t *rapid.T) {
			if len(all) == 0 {
				t.Skip()
			}
			s, b := rapid.SampledFrom(all).Draw(t, "which"), bytesOf.Draw(t, "bytes")
			if s.request != nil && !s.ended {
				s.request.Received(b)
				s.body = append(s.body, b...)
			}
			if s.stream == nil || len(b) == 0 {
				return
			}
			sent := rapid.Bool().Draw(t, "sent")
			s.stream.Note(sent, b)
			if n := len(s.runs); n == 0 || s.runs[n-1].sent != sent {
				s.runs = append(s.runs, saidRun{sent: sent})
			}
			last := &s.runs[len(s.runs)-1]
			last.b = append(last.b, b...)
		},
		"answer": func(t *rapid.T) {
			if len(all) == 0 {
				t.Skip()
			}
			s := rapid.SampledFrom(all).Draw(t, "which")
			if s.request == nil || s.ended {
				t.Skip()
			}
			s.status = rapid.IntRange(200, 999).Draw(t, "status")
			s.request.Answered(s.status, http.Header{"X-A": {rapid.StringMatching(`[ -~é]{0,9}`).
				Draw(t, "value"), ""}})
			if rapid.Bool().Draw(t, "ends") {
				s.ended, s.whole = true, rapid.Bool().Draw(t, "whole")
				var err error
				if !s.whole {
					err = errors.New("cut off: " + text.Draw(t, "reason"))
				}
				s.request.Ended(err)
			}
		},
		"lookup": func(t *rapid.T) {
			_, _ = r.Resolver(found{}).LookupNetIP(context.Background(), "ip4",
				text.Draw(t, "name"))
		},
		"unrecorded": func(t *rapid.T) { r.Cannot(text.Draw(t, "what")) },
	})
	return all
}

type found struct{}

func (found) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	return []netip.Addr{there.Addr()}, nil
}

// TestRecordings checks that what a Recorder writes can be decoded, and that a Player returns it.
func TestRecordings(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var data bytes.Buffer
		r := NewRecorder(Options{Out: &data})
		all := drawTraffic(t, r)
		rec := decoded(t, r, &data)
		if rec.Cut != "" {
			t.Fatal(rec.Cut)
		}
		p := NewPlayer(rec, bytes.NewReader(data.Bytes()), nil)
		for _, s := range all {
			if s.request != nil {
				checkAnswer(t, p, s)
			} else {
				checkStream(t, p, s)
			}
		}
	})
}

func checkAnswer(t *rapid.T, p *Player, s *said) {
	a := p.Answer(s.method, s.url, "")
	if a == nil || p.Answer(s.method, s.url, "") != nil {
		t.Fatalf("%s is not answered once", s.url)
		return
	}
	if a.Status != s.status || (a.Failed == "") != s.whole {
		t.Fatalf("%s: %+v, want status %d, whole %t", s.url, a, s.status, s.whole)
	}
	body, err := io.ReadAll(p.Body(a))
	want := s.body
	if !s.ended { // the end of the body may be missing: it could begin a secret
		want = want[:min(len(want), len(body))]
	}
	if err != nil || !bytes.Equal(body, want) {
		t.Fatalf("%s: body %q, %v, want %q", s.url, body, err, want)
	}
}

func checkStream(t *rapid.T, p *Player, s *said) {
	next := p.Next(s.url, there, false)
	if next == nil {
		t.Fatalf("the connection to %s is missing", s.url)
	}
	runs := p.runs(next)
	for i, want := range s.runs {
		got, err := io.ReadAll(io.MultiReader(runs[i].parts...))
		if err != nil || runs[i].sent != want.sent || !bytes.Equal(got, want.b) ||
			runs[i].size != int64(len(want.b)) {
			t.Fatalf("%s, run %d: %q, %v, want %+v", s.url, i, got, err, want)
		}
	}
	if len(runs) != len(s.runs) {
		t.Fatalf("%s: %d runs, want %d", s.url, len(runs), len(s.runs))
	}
}

// TestRecordingsWithLimits checks that a recording that ends early can be decoded, too, and that no
// recording contains a secret.
func TestRecordingsWithLimits(t *testing.T) {
	secrets, err := secret.New([]string{"KEY=ab-ab-ab"})
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		var data bytes.Buffer
		limit := rapid.Int64Range(1, 200).Draw(t, "limit")
		rooms := rapid.IntRange(0, 20).Draw(t, "room")
		r := NewRecorder(Options{Out: &data, Limit: limit, Secrets: secrets})
		r.asked = -roomEvery // space is asked for at the first piece
		r.opts.Room = func() error {
			if rooms == 0 {
				return errors.New("the disk is full")
			}
			return nil
		}
		drawTraffic(t, r)
		r.Cannot("see ab-ab-ab")
		rec := decoded(t, r, &data)
		if rec.Bytes > limit {
			t.Fatalf("%d bytes, and the limit is %d", rec.Bytes, limit)
		}
		if rooms == 0 && rec.Bytes > 0 {
			t.Fatal("bytes are recorded without space")
		}
		index, _ := json.Marshal(rec)
		if bytes.Contains(append(index, data.Bytes()...), []byte("ab-ab-ab")) {
			t.Fatalf("the recording contains the secret: %s %q", index, data.Bytes())
		}
	})
}

// TestManyTexts checks that a recording ends before its index has more values than Decode accepts.
func TestManyTexts(t *testing.T) {
	r := NewRecorder(Options{Out: io.Discard})
	q := r.Request("GET", "http://a.example/", there)
	header := http.Header{"X": make([]string, 100_000)} // empty values
	for range 2 * maxValues / 100_000 {
		q.Answered(200, header)
	}
	if rec := r.Finish(); rec.Cut == "" || !strings.Contains(rec.Cut, "texts") {
		t.Errorf("cut: %q", rec.Cut)
	}
	// What follows an entry or a piece in its index is within the constants of maxTextCount.
	for what, rec := range map[string]Recording{
		"answer": {Answers: []Request{{Method: "GET", URL: "u", Address: there, Body: "b",
			Status: 200, Header: http.Header{}, Response: []Span{}, Failed: "f"}}},
		"stream": {Streams: []Stream{{Host: "h", Address: there, Protocol: "tcp", Opened: true,
			Failed: "f", Pieces: []Piece{}}}},
		"lookup": {Lookups: []Lookup{{Network: "ip", Name: "n", Addresses: []netip.Addr{},
			Error: "e", NotFound: true}}},
	} {
		rec.Format = recordingFormat
		b, _ := json.Marshal(rec)
		empty, _ := json.Marshal(Recording{Format: recordingFormat})
		if n := values(b) - values(empty); n > 12 {
			t.Errorf("an entry for %s has %d values: %s", what, n, b)
		}
	}
	b, _ := json.Marshal([]Piece{{true, Span{1, 2}}, {true, Span{1, 2}}})
	if n := values(b); n > 2*4 {
		t.Errorf("a piece has %d values: %s", n/2, b)
	}
}

// TestPlay checks that a guest that sends the recorded bytes gets the recorded answers, however
// both are divided, and that a guest that sends others is told so.
func TestPlay(t *testing.T) {
	secrets, err := secret.New([]string{"KEY=sesame-open"})
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		var data bytes.Buffer
		set := rapid.SampledFrom([]*secret.Set{nil, secrets}).Draw(t, "secrets")
		r := NewRecorder(Options{Out: &data, Secrets: set})
		words := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "bc\n", "sesame-open", "ses"}), 1,
			5)
		s := r.Stream(Stream{Host: "a.example", Address: there, Protocol: ProtocolTCP})
		var sent, received []string
		for range rapid.IntRange(1, 4).Draw(t, "runs") {
			sent = append(sent, strings.Join(words.Draw(t, "sent"), ""))
			received = append(received, strings.Join(words.Draw(t, "received"), ""))
			s.Note(true, []byte(sent[len(sent)-1]))
			s.Note(false, []byte(received[len(received)-1]))
		}
		rec := decoded(t, r, &data)
		p := NewPlayer(rec, bytes.NewReader(data.Bytes()), set)
		other := rapid.IntRange(-1, len(sent)-1).Draw(t, "other")
		piece := rapid.IntRange(1, 5).Draw(t, "piece")
		guest, ours := net.Pipe()
		defer guest.Close()
		_ = guest.SetDeadline(time.Now().Add(2 * time.Minute))
		done := make(chan error, 1)
		go func() {
			defer ours.Close()
			done <- p.Play(ours, p.Next("a.example", there, false))
		}()
		for i := range sent {
			text := []byte(sent[i])
			if i == other {
				text[len(text)-1] ^= 1
			}
			for part := range slices.Chunk(text, piece) {
				if _, err := guest.Write(part); err != nil && i != other {
					t.Fatal(err)
				}
			}
			if i == other {
				guest.Close()
				if err := <-done; !errors.Is(err, ErrSentOther) {
					t.Fatalf("other bytes than %q: %v", sent[i], err)
				}
				return
			}
			want := set.Mask(received[i])
			got := make([]byte, len(want))
			if _, err := io.ReadFull(guest, got); err != nil || string(got) != want {
				t.Fatalf("answered %q, %v, want %q", got, err, want)
			}
		}
		guest.Close()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	})
}

// TestPlayerLookup checks that lookups are answered in their order, and the last one again.
func TestPlayerLookup(t *testing.T) {
	one, two := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	p := NewPlayer(&Recording{Lookups: []Lookup{
		{Network: "ip4", Name: "a.example", Addresses: []netip.Addr{one}},
		{Network: "ip4", Name: "a.example", Addresses: []netip.Addr{two}},
		{Network: "ip4", Name: "no.example", Error: "no such host", NotFound: true},
		{Network: "ip4", Name: "slow.example", Error: "timeout"}}}, nil, nil)
	for _, want := range []netip.Addr{one, two, two} {
		got, known, err := p.Lookup("ip4", "A.example.")
		if err != nil || !known || len(got) != 1 || got[0] != want {
			t.Errorf("%v %t %v, want %s", got, known, err, want)
		}
	}
	for _, c := range []struct {
		family, name string
		known, gone  bool
	}{
		{"ip6", "a.example", true, true}, // this family was not asked for
		{"ip4", "b.example", false, true},
		{"ip4", "no.example", true, true},
		{"ip4", "slow.example", true, false},
	} {
		_, known, err := p.Lookup(c.family, c.name)
		var dns *net.DNSError
		if !errors.As(err, &dns) || known != c.known || dns.IsNotFound != c.gone {
			t.Errorf("%s %s: known %t, %v", c.family, c.name, known, err)
		}
	}
}

func TestRecordingFacts(t *testing.T) {
	for want, rec := range map[string]Recording{
		"nothing": {Bytes: 5},
		"1 request, 2 connections, 5 bytes": {Bytes: 5, Answers: make([]Request, 1),
			Streams: make([]Stream, 2)},
		"3 lookups, 1.0 KiB": {Bytes: 1024, Lookups: make([]Lookup, 3)},
	} {
		if got := rec.Facts(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	for _, c := range []struct {
		rec       Recording
		encrypted int
		opened    bool
	}{
		{Recording{}, 0, false},
		{Recording{Streams: []Stream{{Protocol: ProtocolTLS}, {Protocol: ProtocolTLS,
			Failed: "refused"}, {Protocol: ProtocolTCP}}}, 1, false},
		{Recording{Streams: []Stream{{Protocol: ProtocolTCP, Opened: true}}}, 0, true},
		{Recording{Answers: []Request{{URL: "http://a/"}}}, 0, false},
		{Recording{Answers: []Request{{URL: "http://a/"}, {URL: "https://a/"}}}, 0, true},
	} {
		if c.rec.Encrypted() != c.encrypted || c.rec.opened() != c.opened {
			t.Errorf("%+v: %d encrypted, opened %t", c.rec, c.rec.Encrypted(), c.rec.opened())
		}
	}
}
