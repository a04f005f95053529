package recording

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/network"
	"turnstone.dev/turnstone/internal/secret"
)

// Options are the parameters of NewRecorder.
type Options struct {
	Out     io.Writer    // receives the bytes; one goroutine at a time writes
	Limit   int64        // bytes; 0: defaultMost
	Secrets *secret.Set  // masked in the recording; may be nil
	Room    func() error // called at intervals: may more be written? may be nil
}

// A Recorder records what a guest gets from its network. After the first item that cannot be
// recorded, because of its size or a lack of space, it records nothing, and the connections
// continue. It is safe for concurrent use.
type Recorder struct {
	opts Options

	mu     sync.Mutex
	rec    Recording
	pieces int
	texts  int64 // bytes of the encoded index, without pieces
	count  int   // texts in the index
	asked  int64 // rec.Bytes at the last call of Room
	open   map[*StreamRecord]struct{}
	done   bool
}

// NewRecorder returns an empty Recorder.
func NewRecorder(opts Options) *Recorder {
	if opts.Limit <= 0 {
		opts.Limit = defaultMost
	}
	return &Recorder{opts: opts, rec: Recording{Format: recordingFormat},
		open: map[*StreamRecord]struct{}{}}
}

// Finish ends the recording and returns it. Later traffic is not recorded.
func (r *Recorder) Finish() *Recording {
	r.mu.Lock()
	var open []*StreamRecord
	for s := range r.open {
		open = append(open, s)
	}
	r.mu.Unlock()
	for _, s := range open {
		s.Close()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done = true
	rec := r.rec
	return &rec
}

// roomEvery is the number of bytes between two calls of Room.
const roomEvery = 16 << 20

// keep writes p and returns its place; false if it is not recorded. The caller holds r.mu.
func (r *Recorder) keep(p []byte) (Span, bool) {
	if r.done || r.rec.Cut != "" {
		return Span{}, false
	}
	if r.rec.Bytes+int64(len(p)) > r.opts.Limit {
		r.rec.Cut = "it has more than " + turnstone.Bytes(r.opts.Limit).Human()
		return Span{}, false
	}
	if r.pieces++; r.pieces > maxPieces {
		r.rec.Cut = fmt.Sprintf("it has more than %d pieces", maxPieces)
		return Span{}, false
	}
	if r.opts.Room != nil && r.rec.Bytes/roomEvery != r.asked/roomEvery {
		r.asked = r.rec.Bytes
		if err := r.opts.Room(); err != nil {
			r.rec.Cut = "there is no space for more: " + err.Error()
			return Span{}, false
		}
	}
	if _, err := r.opts.Out.Write(p); err != nil {
		r.rec.Cut = "it cannot be written: " + err.Error()
		return Span{}, false
	}
	s := Span{At: r.rec.Bytes, Size: int64(len(p))}
	r.rec.Bytes += s.Size
	return s, true
}

// another reports whether another entry, with these texts, may be added to n entries. The caller
// holds r.mu.
func (r *Recorder) another(n int, texts ...string) bool {
	if r.done || r.rec.Cut != "" {
		return false
	}
	if n >= maxEntries {
		r.rec.Cut = fmt.Sprintf("it has more than %d entries", maxEntries)
		return false
	}
	return r.room(append(texts, entryFrame)...)
}

// entryFrame is as long as the JSON of an entry without its texts, plus its failure.
var entryFrame = strings.Repeat("-", 300+network.MaxReason)

// room reports whether texts may be added to the index, which is in memory until the turn ends. The
// caller holds r.mu.
func (r *Recorder) room(texts ...string) bool {
	for _, s := range texts {
		if len(s) > maxRecordedField {
			r.rec.Cut = fmt.Sprintf("an address or a header in it has more than %s",
				turnstone.Bytes(maxRecordedField).Human())
			return false
		}
		for i := range len(s) { // JSON encodes any other byte in at most six
			if c := s[i]; c < ' ' || c > '~' || strings.IndexByte(`"\<>&`, c) >= 0 {
				r.texts += 5
			}
		}
		r.texts += int64(len(s)) + int64(len(`"",`))
	}
	if r.count += len(texts); r.count > maxTextCount {
		r.rec.Cut = fmt.Sprintf("its index has more than %d texts", maxTextCount)
		return false
	}
	if r.texts > MaxTexts {
		r.rec.Cut = "its index has more than " + turnstone.Bytes(MaxTexts).Human()
		return false
	}
	return true
}

// Cannot records that what cannot be recorded.
func (r *Recorder) Cannot(what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	what = r.opts.Secrets.Mask(what)
	if !r.done && len(r.rec.Unrecorded) < maxUnrecorded &&
		!slices.Contains(r.rec.Unrecorded, what) {
		r.rec.Unrecorded = append(r.rec.Unrecorded, what)
	}
}

// A StreamRecord is a connection that is being recorded. A nil StreamRecord records nothing.
type StreamRecord struct {
	r *Recorder
	i int // index in r.rec.Streams

	mu   sync.Mutex
	sent bool           // the direction of the current bytes
	w    io.WriteCloser // masks; nil: no current bytes
	buf  []byte
}

// streamBuffer is how many bytes of a direction are collected into a piece.
const streamBuffer = 64 << 10

// Stream begins the record of a connection; nil if it is not recorded.
func (r *Recorder) Stream(s Stream) *StreamRecord {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s.Host, s.Failed = r.opts.Secrets.Mask(s.Host), r.opts.Secrets.Mask(s.Failed)
	if !r.another(len(r.rec.Streams), s.Host, s.Failed) {
		return nil
	}
	r.rec.Streams = append(r.rec.Streams, s)
	rec := &StreamRecord{r: r, i: len(r.rec.Streams) - 1}
	if s.Failed == "" {
		r.open[rec] = struct{}{}
	}
	return rec
}

// Note records bytes of the connection.
func (s *StreamRecord) Note(sent bool, p []byte) {
	if s == nil || len(p) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.w != nil && s.sent != sent {
		s.end()
	}
	if s.w == nil {
		s.sent, s.w = sent, s.r.opts.Secrets.Writer(pieceWriter{s})
	}
	if s.buf = append(s.buf, p...); len(s.buf) >= streamBuffer {
		_, _ = s.w.Write(s.buf) // a missing piece is reported elsewhere
		s.buf = s.buf[:0]
	}
}

// end writes the current bytes. The caller holds s.mu.
func (s *StreamRecord) end() {
	if s.w == nil {
		return
	}
	_, _ = s.w.Write(s.buf)
	_ = s.w.Close()
	s.w, s.buf = nil, s.buf[:0]
}

// Close ends the record.
func (s *StreamRecord) Close() {
	if s == nil {
		return
	}
	s.mu.Lock()
	s.end()
	s.mu.Unlock()
	s.r.mu.Lock()
	delete(s.r.open, s)
	s.r.mu.Unlock()
}

// A pieceWriter adds to a stream's pieces. It never fails.
type pieceWriter struct{ s *StreamRecord }

// Write implements io.Writer.
func (w pieceWriter) Write(p []byte) (int, error) {
	r := w.s.r
	if len(p) == 0 {
		return 0, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if span, ok := r.keep(p); ok {
		all := &r.rec.Streams[w.s.i].Pieces
		if n := len(*all); n > 0 && (*all)[n-1].Sent == w.s.sent &&
			(*all)[n-1].At+(*all)[n-1].Size == span.At {
			(*all)[n-1].Size += span.Size
			r.pieces--
		} else {
			*all = append(*all, Piece{Sent: w.s.sent, Span: span})
		}
	}
	return len(p), nil
}

// A RequestRecord is a request that is being recorded. A nil RequestRecord records nothing.
type RequestRecord struct {
	r     *Recorder
	i     int
	w     io.WriteCloser
	Whole func() // reports the body, if it was not reported yet; may be nil
}

// Request begins the record of a request.
func (r *Recorder) Request(method, url string, to netip.AddrPort) *RequestRecord {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	url = r.opts.Secrets.Mask(url)
	if !r.another(len(r.rec.Answers), method, url) {
		return nil
	}
	r.rec.Answers = append(r.rec.Answers, Request{Method: method, URL: url, Address: to,
		Failed: "the turn ended before the answer did"})
	q := &RequestRecord{r: r, i: len(r.rec.Answers) - 1}
	q.w = r.opts.Secrets.Writer(bodyWriter{q})
	return q
}

// Sent records the request's body.
func (q *RequestRecord) Sent(body turnstone.Digest) {
	if q != nil {
		q.edit(func(a *Request) { a.Body = body })
	}
}

// Answered records the beginning of the answer.
func (q *RequestRecord) Answered(status int, header http.Header) {
	if q == nil {
		return
	}
	kept := http.Header{}
	for name, values := range header {
		for _, v := range values {
			kept[name] = append(kept[name], q.r.opts.Secrets.Mask(v))
		}
	}
	q.edit(func(a *Request) {
		for name, values := range kept {
			if q.r.rec.Cut != "" || !q.r.room(append(values, name)...) {
				return
			}
		}
		a.Status, a.Header = status, kept
	})
}

// Received records a part of the answer's body.
func (q *RequestRecord) Received(p []byte) {
	if q != nil {
		_, _ = q.w.Write(p)
	}
}

// Ended records that the answer is over; err is why it ended early, or nil.
func (q *RequestRecord) Ended(err error) {
	if q == nil {
		return
	}
	if q.Whole != nil {
		q.Whole()
	}
	_ = q.w.Close()
	failed := ""
	if err != nil {
		failed = network.Shorten(q.r.opts.Secrets.Mask(err.Error()))
	}
	q.edit(func(a *Request) {
		if a.Status != 0 || failed != "" {
			a.Failed = failed
		}
	})
}

func (q *RequestRecord) edit(f func(*Request)) {
	q.r.mu.Lock()
	defer q.r.mu.Unlock()
	if !q.r.done {
		f(&q.r.rec.Answers[q.i])
	}
}

// A bodyWriter adds to an answer's body. It never fails.
type bodyWriter struct{ q *RequestRecord }

// Write implements io.Writer.
func (w bodyWriter) Write(p []byte) (int, error) {
	r := w.q.r
	if len(p) == 0 {
		return 0, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if span, ok := r.keep(p); ok {
		all := &r.rec.Answers[w.q.i].Response
		if n := len(*all); n > 0 && (*all)[n-1].At+(*all)[n-1].Size == span.At {
			(*all)[n-1].Size += span.Size
			r.pieces--
		} else {
			*all = append(*all, span)
		}
	}
	return len(p), nil
}

// A recordingResolver records the answers of another resolver.
type recordingResolver struct {
	network.Resolver
	r *Recorder
}

// Resolver returns a resolver that records the answers of below.
func (r *Recorder) Resolver(below network.Resolver) network.Resolver {
	return &recordingResolver{below, r}
}

// LookupNetIP implements Resolver.
func (v *recordingResolver) LookupNetIP(ctx context.Context, family,
	host string) ([]netip.Addr, error) {
	addrs, err := v.Resolver.LookupNetIP(ctx, family, host)
	// Only that many are used.
	l := Lookup{Network: family, Name: network.BareName(host),
		Addresses: slices.Clone(addrs[:min(len(addrs), 2*network.MaxAnswers)])}
	if err != nil {
		var dns *net.DNSError
		l.Error, l.NotFound = err.Error(), errors.As(err, &dns) && dns.IsNotFound
	}
	v.r.mu.Lock()
	defer v.r.mu.Unlock()
	l.Name, l.Error = v.r.opts.Secrets.Mask(l.Name), v.r.opts.Secrets.Mask(l.Error)
	texts := []string{l.Name, l.Error}
	for _, a := range l.Addresses {
		texts = append(texts, a.String())
	}
	if v.r.another(len(v.r.rec.Lookups), texts...) {
		v.r.rec.Lookups = append(v.r.rec.Lookups, l)
	}
	return addrs, err
}

// A recordingDialer records what bypasses the recording.
type recordingDialer struct {
	network.Dialer
	r *Recorder
}

// Dialer returns a dialer that records which connections of below bypass the recording.
func (r *Recorder) Dialer(below network.Dialer) network.Dialer { return &recordingDialer{below, r} }

// DialContext implements Dialer.
func (d *recordingDialer) DialContext(ctx context.Context, protocol,
	address string) (net.Conn, error) {
	if protocol == "udp" {
		d.r.Cannot("udp to " + address)
	}
	return d.Dialer.DialContext(ctx, protocol, address)
}
