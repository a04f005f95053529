package gateway

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// TestFloodEndsConnection: an address that sends more than its rate allows loses its connection, so
// that the rate of connections bounds the answers to a flood. A proxy's connection is many callers'.
func TestFloodEndsConnection(t *testing.T) {
	few := func(o *Options, so *ServeOptions) {
		limits(Limits{AddressRate: 1, AddressBurst: 4})(o, so)
		stopped(o, so)
	}
	reset := func(s *scene) (sent int, ended bool) {
		conn := s.dial(t)
		_, err := io.WriteString(conn, http2.ClientPreface)
		check(t, err)
		f := http2.NewFramer(conn, conn)
		check(t, f.WriteSettings())
		head := encode(t, ":method", "GET", ":scheme", "http", ":authority", "x", ":path", HealthPath)
		read := make(chan bool)
		go func() {
			for {
				frame, err := f.ReadFrame()
				if _, away := frame.(*http2.GoAwayFrame); err != nil || away {
					read <- true
					return
				}
			}
		}()
		for sent < 10_000 {
			if f.WriteHeaders(http2.HeadersFrameParam{StreamID: uint32(2*sent + 1),
				BlockFragment: head, EndHeaders: true, EndStream: true}) != nil {
				break
			}
			sent++
			_ = f.WriteRSTStream(uint32(2*sent-1), http2.ErrCodeCancel)
		}
		select {
		case <-read:
			return sent, true
		case <-time.After(time.Minute): // only where it does not end
			_ = conn.Close()
			<-read
			return sent, false
		}
	}
	if sent, ended := reset(newScene(t, few)); !ended {
		t.Errorf("the connection goes on after %d requests", sent)
	}
	behind := newScene(t, few, func(o *Options, _ *ServeOptions) {
		o.Proxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	})
	get := func(s *scene, conn io.ReadWriter) (all []string) {
		for range 6 {
			if _, err := io.WriteString(conn, askHealth); err != nil {
				break
			}
			p := make([]byte, 4096)
			n, err := conn.Read(p)
			if err != nil {
				break
			}
			all = append(all, string(p[9:12])+map[bool]string{true: " close"}[bytes.Contains(p[:n],
				[]byte("Connection: close"))])
		}
		return all
	}
	if got := strings.Join(get(behind, behind.dial(t)), ","); got != "200,200,200,200,429,429" {
		t.Errorf("behind a proxy: %s", got)
	}
	direct := newScene(t, few)
	if got := strings.Join(get(direct, direct.dial(t)), ","); got != "200,200,200,200,429 close" {
		t.Errorf("direct: %s", got)
	}
}

// TestUnknownCallersSendLittle: without a token a body has few bytes, because an answer about a
// service is much larger than its question; with whatever protocol, and also in pieces.
func TestUnknownCallersSendLittle(t *testing.T) {
	s := newScene(t)
	question := "\x00\x00\x00\x00\x1d\x22\x1bturnstone.v1.SandboxService"
	for name, pieces := range map[string]bool{"with its length": false, "in pieces": true} {
		t.Run(name, func(t *testing.T) {
			var body io.Reader = strings.NewReader(strings.Repeat(question, 1000))
			if pieces {
				body = io.MultiReader(body) // net/http does not know its length
			}
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
				s.url()+"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", body)
			check(t, err)
			r.Header.Set("Content-Type", "application/grpc")
			r.Header.Set("Te", "trailers")
			answer, err := s.transport(t, true).RoundTrip(r)
			if err != nil {
				return // the stream was reset before its answer
			}
			n, err := io.Copy(io.Discard, answer.Body)
			_ = answer.Body.Close()
			status := answer.Trailer.Get("Grpc-Status") + answer.Header.Get("Grpc-Status")
			if err == nil && status == "0" || errors.Is(err, io.EOF) {
				t.Errorf("the answer has %d bytes, and the status %q", n, status)
			}
			s.works(t)
		})
	}
}
