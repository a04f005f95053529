package recording

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"sync"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/network"
	"turnstone.dev/turnstone/internal/secret"
)

// A Player answers from a Recording. It serves each request and each connection once, in the order
// of the recording. It is safe for concurrent use.
type Player struct {
	Rec     *Recording
	data    io.ReaderAt
	secrets *secret.Set

	mu      sync.Mutex
	answers map[requestKey][]int
	streams map[endpoint][]int
	lookups map[lookupKey][]int
	names   map[string]bool   // names that were looked up
	asked   map[endpoint]bool // destinations of requests
}

// requestKey identifies a request.
type requestKey struct {
	method, url string
	body        turnstone.Digest
}

// endpoint identifies a connection's destination.
type endpoint struct {
	host   string
	port   uint16
	opened bool
}

type lookupKey struct{ family, name string }

// NewPlayer returns a Player of rec, which Decode has returned, with its bytes in data. secrets are
// the values that are masked in it.
func NewPlayer(rec *Recording, data io.ReaderAt, secrets *secret.Set) *Player {
	p := &Player{Rec: rec, data: data, secrets: secrets,
		answers: map[requestKey][]int{}, streams: map[endpoint][]int{},
		lookups: map[lookupKey][]int{}, names: map[string]bool{}, asked: map[endpoint]bool{}}
	for i := range rec.Answers {
		q := &rec.Answers[i]
		k := requestKey{q.Method, q.URL, q.Body}
		p.answers[k] = append(p.answers[k], i)
		if u, err := url.Parse(q.URL); err == nil {
			p.asked[endpoint{network.HostOnly(u.Host), q.Address.Port(), false}] = true
		}
	}
	for i := range rec.Streams {
		s := &rec.Streams[i]
		k := endpointOf(s.Host, s.Address, s.Opened)
		p.streams[k] = append(p.streams[k], i)
	}
	for i := range rec.Lookups {
		l := &rec.Lookups[i]
		k := lookupKey{l.Network, l.Name}
		p.lookups[k], p.names[l.Name] = append(p.lookups[k], i), true
	}
	return p
}

func endpointOf(host string, to netip.AddrPort, opened bool) endpoint {
	if host == "" {
		host = to.Addr().String()
	}
	return endpoint{host, to.Port(), opened}
}

// NotRecorded is the reason for a Player's refusals.
const NotRecorded = "not in the recording"

// Lookup answers for a name; known reports whether it is in the recording. The last answer is
// repeated, because the number of lookups depends on caches.
func (p *Player) Lookup(family, host string) (addrs []netip.Addr, known bool, err error) {
	name := p.secrets.Mask(network.BareName(host))
	p.mu.Lock()
	defer p.mu.Unlock()
	k := lookupKey{family, name}
	all := p.lookups[k]
	if len(all) == 0 {
		return nil, p.names[name], &net.DNSError{Err: NotRecorded, Name: host, IsNotFound: true}
	}
	l := &p.Rec.Lookups[all[0]]
	if len(all) > 1 {
		p.lookups[k] = all[1:]
	}
	if l.Error != "" {
		return nil, true, &net.DNSError{Err: "was recorded: " + l.Error, Name: host,
			IsNotFound: l.NotFound, IsTemporary: !l.NotFound}
	}
	return l.Addresses, true, nil
}

// Opened reports whether the recording has answers that came over TLS: see Recording.Opened.
func (p *Player) Opened() bool { return p.Rec.opened() }

// Rules returns at most limit rules that open what is in the recording: no connection leaves the
// host.
func (p *Player) Rules(limit int) []network.Rule {
	var rules []network.Rule
	seen := map[network.Rule]bool{}
	add := func(to netip.AddrPort) {
		if !to.IsValid() || len(rules) >= limit {
			return
		}
		a := network.HostAddress(to).Addr()
		r := network.Rule{Prefix: netip.PrefixFrom(a, a.BitLen())}
		if a.IsLoopback() { // is opened port by port
			r.Port = to.Port()
		}
		if !seen[r] && r.CheckAllow() == nil {
			seen[r] = true
			rules = append(rules, r)
		}
	}
	for i := range p.Rec.Answers {
		add(p.Rec.Answers[i].Address)
	}
	for i := range p.Rec.Streams {
		add(p.Rec.Streams[i].Address)
	}
	for i := range p.Rec.Lookups {
		for _, a := range p.Rec.Lookups[i].Addresses {
			add(netip.AddrPortFrom(a, 0))
		}
	}
	return rules
}

// Answer returns the next answer to a request; nil if there is none.
func (p *Player) Answer(method, address string, body turnstone.Digest) *Request {
	k := requestKey{method, p.secrets.Mask(address), body}
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.answers[k]
	if len(all) == 0 {
		return nil
	}
	p.answers[k] = all[1:]
	return &p.Rec.Answers[all[0]]
}

// Body returns the body of an answer.
func (p *Player) Body(a *Request) io.Reader {
	var parts []io.Reader
	for _, s := range a.Response {
		parts = append(parts, io.NewSectionReader(p.data, s.At, s.Size))
	}
	return io.MultiReader(parts...)
}

// Next returns the next connection to an endpoint; nil if there is none.
func (p *Player) Next(host string, to netip.AddrPort, opened bool) *Stream {
	k := endpointOf(p.secrets.Mask(host), to, opened)
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.streams[k]
	if len(all) == 0 {
		return nil
	}
	p.streams[k] = all[1:]
	return &p.Rec.Streams[all[0]]
}

// Knows reports whether connections to a host are left.
func (p *Player) Knows(host string, to netip.AddrPort) bool {
	host = p.secrets.Mask(host)
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asked[endpointOf(host, to, false)] || len(p.streams[endpointOf(host, to, false)])+
		len(p.streams[endpointOf(host, to, true)]) > 0
}

// Failed reports whether the next connection to an endpoint could not be opened.
func (p *Player) Failed(host string, to netip.AddrPort) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.streams[endpointOf(p.secrets.Mask(host), to, false)]
	return len(all) > 0 && p.Rec.Streams[all[0]].Failed != ""
}

// SpeaksFirst reports whether on the next connection to an endpoint the other side begins, or
// whether it failed.
func (p *Player) SpeaksFirst(host string, to netip.AddrPort, opened bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.streams[endpointOf(p.secrets.Mask(host), to, opened)]
	if len(all) == 0 {
		return false
	}
	s := &p.Rec.Streams[all[0]]
	return s.Failed == "" && (len(s.Pieces) == 0 || !s.Pieces[0].Sent)
}

var (
	ErrSentOther = errors.New("sent other bytes than in the recording")
	errSentMore  = errors.New("sent more than in the recording")
)

// lingerTime is how long a guest may take to end a connection whose recording is over.
const lingerTime = 10 * time.Second

// A run is what one side sent before the other side's next bytes.
type run struct {
	sent  bool
	parts []io.Reader
	size  int64
}

func (p *Player) runs(s *Stream) []run {
	var all []run
	for _, piece := range s.Pieces {
		if n := len(all); n == 0 || all[n-1].sent != piece.Sent {
			all = append(all, run{sent: piece.Sent})
		}
		last := &all[len(all)-1]
		last.parts = append(last.parts, io.NewSectionReader(p.data, piece.At, piece.Size))
		last.size += piece.Size
	}
	return all
}

// Play serves a recorded connection to guest. Errors concern the guest's bytes.
func (p *Player) Play(guest net.Conn, s *Stream) error {
	for _, r := range p.runs(s) {
		said := io.MultiReader(r.parts...)
		if r.sent {
			if err := p.expect(guest, said, r.size); err != nil {
				return err
			}
		} else if _, err := io.Copy(guest, said); err != nil {
			return nil // the guest has gone
		}
	}
	_ = network.CloseWrite(guest)
	_ = guest.SetReadDeadline(time.Now().Add(lingerTime))
	if n, _ := guest.Read(make([]byte, 1)); n > 0 {
		return errSentMore
	}
	return nil
}

// expect reads the guest's recorded bytes from guest.
func (p *Player) expect(guest net.Conn, said io.Reader, size int64) error {
	if p.secrets == nil {
		return expectPlain(guest, said, size)
	}
	if size > maxMaskedRun {
		return fmt.Errorf("sent more than %d bytes at once, which is not compared beside secrets",
			maxMaskedRun)
	}
	want, err := io.ReadAll(said)
	if err != nil {
		return err
	}
	var raw, definite bytes.Buffer // definite excludes bytes that may begin a value
	w := p.secrets.Writer(&definite)
	buf := make([]byte, 32<<10)
	for {
		if !bytes.HasPrefix(want, definite.Bytes()) || raw.Len() > 2*maxMaskedRun {
			return ErrSentOther
		}
		if len(want)-definite.Len() <= secret.MaxValue &&
			p.secrets.Mask(raw.String()) == string(want) {
			return nil
		}
		n, err := guest.Read(buf)
		if n == 0 && err != nil {
			return ErrSentOther
		}
		raw.Write(buf[:n])
		if _, err := w.Write(buf[:n]); err != nil {
			return err
		}
	}
}

// maxMaskedRun bounds the compared bytes of a run if there are secrets.
const maxMaskedRun = 4 << 20

func expectPlain(guest net.Conn, want io.Reader, total int64) error {
	got, wanted := make([]byte, 32<<10), make([]byte, 32<<10)
	for total > 0 {
		n, err := guest.Read(got[:min(total, int64(len(got)))])
		if n == 0 && err != nil {
			return ErrSentOther
		}
		if _, err := io.ReadFull(want, wanted[:n]); err != nil {
			return err
		}
		if !bytes.Equal(got[:n], wanted[:n]) {
			return ErrSentOther
		}
		total -= int64(n)
	}
	return nil
}
