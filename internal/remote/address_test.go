package remote

import (
	"net"
	"net/url"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
)

// FuzzAddress reads addresses of servers, and the paths of channels that a server answers: nothing
// but a name of this machine is reached without TLS, and no answer leads to another server.
func FuzzAddress(f *testing.F) {
	f.Add("https://turn.example.org/a", "/turnstone/v1/sandboxes/sb_1/channel")
	f.Add("http://127.0.0.1:80", "//other.example.org/turnstone/v1/x")
	f.Add("unix:/run/turn.sock", "/turnstone/v1/../x")
	f.Fuzz(func(t *testing.T, text, path string) {
		a, err := ParseAddress(text)
		if err != nil {
			if turnstone.KindOf(err) != turnstone.KindInvalid || turnstone.HintOf(err) == "" {
				t.Fatal(err)
			}
			return
		}
		again, err := ParseAddress(a.String())
		if err != nil || again.String() != a.String() {
			t.Fatalf("%q is %q, then %q, %v", text, a, again, err)
		}
		to, err := a.channel(path)
		if err != nil {
			if turnstone.KindOf(err) != turnstone.KindIntegrity {
				t.Fatal(err)
			}
			return
		}
		u, err := url.Parse(to)
		if err != nil {
			t.Fatalf("%q and %q: %v", text, path, err)
		}
		want, prefix, scheme := "server", "", "ws"
		if a.base != nil {
			want, prefix = a.base.Host, a.base.Path
			if a.base.Scheme == "https" {
				scheme = "wss"
			} else if ip := net.ParseIP(u.Hostname()); !strings.EqualFold(u.Hostname(), "localhost") &&
				(ip == nil || !ip.IsLoopback()) {
				t.Fatalf("%q is reached in the clear", to)
			}
		}
		if u.Host != want || u.Scheme != scheme || u.User != nil || u.RawQuery != "" ||
			!strings.HasPrefix(u.Path, prefix+"/turnstone/v1/") || strings.Contains(u.Path, "/../") {
			t.Fatalf("%q and %q lead to %q", text, path, to)
		}
	})
}
