package proxy

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/network"
	"turnstone.dev/turnstone/internal/network/networktest"
	"turnstone.dev/turnstone/internal/network/recording"
)

// FuzzGuestRequests checks that no request to a host that the policy refuses arrives, whatever
// bytes a guest sends, in any pieces.
func FuzzGuestRequests(f *testing.F) {
	for i, text := range networktest.Smuggling {
		if strings.Contains(text, "%[1]s") {
			text = fmt.Sprintf(text, networktest.GoodRequest[:len(networktest.GoodRequest)*(i%2)])
		}
		f.Add([]byte(text), []byte{1, 3, 0, 7}, uint8(i))
	}
	f.Add([]byte("a: b\n\x1cHost\x85:evil.example\n\n"), []byte{1, 1, 1, 1}, uint8(0))
	f.Add([]byte("POST\r/E\rHost: evil.example\r\n\r\n"), []byte{5}, uint8(2))
	f.Add([]byte("EHLO there\r\nGET / HTTP/1.1\r\nHost: evil.example\r\n\r\n"), []byte{9}, uint8(0))
	f.Fuzz(func(t *testing.T, b, cuts []byte, mode uint8) {
		if len(b) > 8<<10 {
			return
		}
		opts := Options{Resolver: networktest.NewHost(t)}
		c := &connection{to: netip.MustParseAddrPort("198.51.100.1:80"), scheme: "http"}
		if mode&1 != 0 {
			opts.Recorder = recording.NewRecorder(recording.Options{Out: io.Discard})
		}
		if mode&2 != 0 {
			c.scheme = "https"
		}
		c.name = "api.example.com"
		if mode&4 != 0 {
			opts.Headers = []turnstone.SecretHeader{{Scheme: c.scheme, Host: "api.example.com",
				Name: "X-Other", Value: "sesame"}}
		} else {
			j := network.NewJudge(network.Policy{Only: true,
				Allow: []network.Rule{{Name: "api.example.com", Port: 80}}}, networktest.NoneOwn)
			known := network.NewNames(1, time.Hour)
			known.Add(c.to.Addr(), "api.example.com")
			c.request = func(host string) string {
				return j.Check(c.to,
					[]string{"api.example.com"}).Request(host, known)
			}
			if mode&8 != 0 {
				c.name = ""
			}
		}
		c.p = New(opts)
		guest, ours := networktest.SocketPair(t)
		up, theirs := networktest.SocketPair(t)
		s := &networktest.LenientServer{}
		done := make(chan struct{}, 2)
		go func() {
			s.Serve(theirs)
			done <- struct{}{}
		}()
		go func() {
			defer func() { done <- struct{}{} }()
			go func() { _, _ = io.Copy(io.Discard, guest) }()
			for rest, i := b, 0; len(rest) > 0; i++ {
				n := len(rest)
				if i < len(cuts) {
					n = min(n, 1+int(cuts[i]))
				}
				if _, err := guest.Write(rest[:n]); err != nil {
					return
				}
				rest = rest[n:]
			}
			_ = network.CloseWrite(guest)
		}()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		stop := context.AfterFunc(ctx, func() { _, _ = ours.Close(), up.Close() })
		c.carry(ctx, newEager(ours), newEager(up))
		if !stop() {
			t.Fatal("it takes too long")
		}
		_, _ = ours.Close(), up.Close()
		<-done
		<-done
		_ = guest.Close()
		for _, h := range s.Hosts() {
			if name := network.HostOnly(h); name != "api.example.com" {
				t.Fatalf("a request to %q arrived, of %q", h, s.Got)
			}
		}
	})
}
