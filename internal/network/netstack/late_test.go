package netstack

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone/internal/network"
	"turnstone.dev/turnstone/internal/network/networktest"
)

// TestLateGreetingIsInterceptedToo checks that a guest that stays silent until the interceptor
// takes its connection is still checked.
func TestLateGreetingIsInterceptedToo(t *testing.T) {
	for what, want := range map[string]string{"bad.example": "reset", "good.example": "echo"} {
		t.Run(what, func(t *testing.T) {
			took := make(chan struct{}, 1)
			w := newWorld(t, Options{Policy: network.Policy{Deny: networktest.Rules(t,
				"bad.example")},
				Interceptor: intercept(func(_ context.Context, guest net.Conn,
					_ network.Target) bool {
					took <- struct{}{}
					_, _ = io.Copy(guest, guest)
					return true
				})})
			w.host.Listen("198.51.100.1:443", networktest.Echo)
			c := w.mustDial("198.51.100.1:443")
			defer c.Close()
			<-took
			hello := networktest.ClientHello(t, what)
			_, _ = c.Write(hello)
			_ = c.SetDeadline(time.Now().Add(2 * time.Minute))
			_, err := io.ReadFull(c, make([]byte, len(hello)))
			if got := err == nil; got != (want == "echo") || !got &&
				!strings.Contains(err.Error(), "reset") {
				t.Fatal(err)
			}
			if want == "reset" {
				if r := w.log.lastRefusal(t); r.Reason != "in deny: bad.example" {
					t.Errorf("%+v", r)
				}
			}
		})
	}
}
