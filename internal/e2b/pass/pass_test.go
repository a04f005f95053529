package pass_test

import (
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone/internal/e2b/pass"
)

const id = "sb_06h0rmtbmsc1jh7bfo"

func TestTokens(t *testing.T) {
	k, other := pass.NewKey([pass.KeySize]byte{1}), pass.NewKey([pass.KeySize]byte{2})
	if !k.IsDaemon(id, k.Daemon(id)) || !k.IsTraffic(id, k.Traffic(id)) {
		t.Fatal("a token of the key is refused")
	}
	for name, token := range map[string]string{"none": "", "another key's": other.Daemon(id),
		"another sandbox's": k.Daemon("sb_06h0rmtbmsc1jh7bfp"), "for ports": k.Traffic(id),
		"long": strings.Repeat("x", 1<<20), "longer": k.Daemon(id) + "0",
		"upper case": strings.ToUpper(k.Daemon(id))} {
		if k.IsDaemon(id, token) {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestClient(t *testing.T) {
	k := pass.NewKey([pass.KeySize]byte{1})
	a, err := k.Client("a")
	if err != nil {
		t.Fatal(err)
	}
	again, _ := pass.NewKey([pass.KeySize]byte{1}).Client("a")
	b, _ := k.Client("b")
	if a.Public != again.Public || a.Public == b.Public {
		t.Errorf("keys %s, %s, %s", a, again, b)
	}
}

// The signature of a client, made with Python's e2b 2.63.0: get_signature("/a b", "read", "user", token).
func TestIsSigned(t *testing.T) {
	k := pass.NewKey([pass.KeySize]byte{})
	now := time.Unix(1000, 0)
	good := pass.Link{Path: "/a b", User: "user", Operation: pass.Read,
		Signature: "v1_sRveC4K1rH5DHOx4eJc1OlMYzHI88DgUCmuHzj5iJBs"}
	if !k.IsSigned(id, good, now) {
		t.Fatal("a good link is refused")
	}
	for name, change := range map[string]func(*pass.Link){
		"path":      func(l *pass.Link) { l.Path = "/a" },
		"user":      func(l *pass.Link) { l.User = "" },
		"operation": func(l *pass.Link) { l.Operation = pass.Write },
		"expiry":    func(l *pass.Link) { l.Expires = "2000" },
		"none":      func(l *pass.Link) { l.Signature = "" },
		"version":   func(l *pass.Link) { l.Signature = l.Signature[3:] },
	} {
		l := good
		change(&l)
		if k.IsSigned(id, l, now) {
			t.Errorf("another %s: accepted", name)
		}
	}
	limited := pass.Link{Path: "/a b", Operation: pass.Write, Expires: "2000",
		Signature: "v1_PLE/ZlUAvDw6iXnrqNSHv2RlmU6r+8QWUMkLMWZ/TNI"}
	if !k.IsSigned(id, limited, now) {
		t.Error("a link that has not expired is refused")
	}
	if k.IsSigned(id, limited, time.Unix(2000, 0)) {
		t.Error("a link that has expired is accepted")
	}
	for _, text := range []string{"never", "-1", "99999999999999999999", " 2000"} {
		l := limited
		l.Expires = text
		if k.IsSigned(id, l, now) {
			t.Errorf("expiry %q: accepted", text)
		}
	}
}

func FuzzIsSigned(f *testing.F) {
	k := pass.NewKey([pass.KeySize]byte{})
	f.Add("/a", "user", "read", "2000", "v1_")
	f.Fuzz(func(t *testing.T, path, user, op, expires, signature string) {
		if k.IsSigned(id, pass.Link{Path: path, User: user, Operation: op, Expires: expires,
			Signature: signature}, time.Unix(1000, 0)) {
			t.Fatal("a link that nobody signed is accepted")
		}
	})
}
