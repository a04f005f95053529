package gateway

import (
	"bytes"
	"io"
	"net/http"
	"net/netip"
	"testing"
)

// FuzzForwarded: whatever a header says, the caller is the connection's address unless that is a
// trusted proxy's, and then it is an address that the header has, or a proxy's.
func FuzzForwarded(f *testing.F) {
	f.Add("192.0.2.1:5", "10.0.0.1, 6.6.6.6")
	f.Add("10.0.0.1:5", "6.6.6.6, 192.0.2.9,10.0.0.7")
	f.Add("[fd00::1]:9", "::1, ::ffff:10.0.0.1")
	proxies := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}
	f.Fuzz(func(t *testing.T, remote, header string) {
		got, ok := callerOf(&http.Request{RemoteAddr: remote,
			Header: http.Header{"X-Forwarded-For": {header}}}, proxies)
		at, valid := addressOf(remote)
		switch {
		case ok != valid:
			t.Errorf("%q is an address: %v", remote, ok)
		case ok && !within(at, proxies) && got != network(at):
			t.Errorf("%q has become %s", remote, got)
		case ok && (!got.IsValid() || got.Addr().Is4In6() || got.Addr().Zone() != ""):
			t.Errorf("the network is %s", got)
		}
	})
}

// FuzzStream: a broken stream of a controller gets an end that its protocol reads, at the end of a
// message.
func FuzzStream(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x00\x03abc"), byte(0))
	f.Add([]byte("\x00\x00\x00\x00\x03ab"), byte(1))
	kinds := []string{"application/connect+proto", "application/grpc-web", "application/grpc", "text/html"}
	writer := newRefuser("").writer
	f.Fuzz(func(t *testing.T, stream []byte, kind byte) {
		r := &http.Response{Header: http.Header{"Content-Type": {kinds[int(kind)%len(kinds)]}}}
		a := &answer{ReadCloser: io.NopCloser(io.MultiReader(bytes.NewReader(stream), broken{})),
			response: r, form: formOf(r.Header), writer: writer,
			explain: func(error) error { return ending() }}
		all, err := io.ReadAll(a)
		if !bytes.HasPrefix(all, stream) {
			t.Errorf("%q came as %q", stream, all)
		}
		var p place
		p.pass(stream)
		whole := !p.within() || a.form == trailed
		if a.form != noForm && (err == nil) != whole {
			t.Errorf("%q: %v", stream, err)
		}
		p = place{}
		if p.pass(all); err == nil && a.form != trailed && p.within() {
			t.Errorf("the end is within a message: %q", all)
		}
		if err == nil && a.form == trailed && r.Trailer.Get("Grpc-Status") != "14" {
			t.Errorf("trailers: %v", r.Trailer)
		}
	})
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }
