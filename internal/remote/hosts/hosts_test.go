package hosts_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/proof/key"
	"turnstone.dev/turnstone/internal/remote/hosts"
	"turnstone.dev/turnstone/internal/statedir"
)

const (
	one = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIqI4910CfGV/VLbLTy6XXLKZwm/HZQSG/N0iAG0D29c"
	two = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIE5dw6ofRdfVqNUZsNMfszLjYqRtO43ZkwQVaAkjuEw"
)

const good = `current = "work"
[hosts.work]
url = "https://turn.example.org"
token_file = "/home/u/token"
[hosts.work.nodes]
n1 = ["` + one + `"]
n2 = ["` + one + `", "` + two + `"]
[hosts.here]
url = "unix:/run/turn.sock"
`

func store(t *testing.T) hosts.Store {
	t.Helper()
	dir, err := statedir.Open(filepath.Join(t.TempDir(), "home"))
	if err != nil {
		t.Fatal(err)
	}
	return hosts.Store{Dir: dir}
}

func TestParse(t *testing.T) {
	l, err := hosts.Parse(good)
	if err != nil {
		t.Fatal(err)
	}
	text, err := l.Encode()
	if err != nil {
		t.Fatal(err)
	}
	again, err := hosts.Parse(string(text))
	if err != nil || !reflect.DeepEqual(l, again) {
		t.Fatalf("%s: %v", text, err)
	}
	for bad, says := range map[string]string{
		"current = \"x\"": "no host",
		"hosts = 1":       "",
		"nonsense = 1":    "not known",
		"[hosts.a]\nurl = \"http://example.org\"":                            "unencrypted",
		"[hosts.a]\nurl = \"https://A.example/\"":                            "write https://a.example",
		"[hosts.a]\nurl=\"https://u:p@a\"":                                   "password",
		"[hosts.a]\n":                                                        "scheme",
		"[hosts.local]\nurl = \"https://a\"":                                 "meaning",
		"[hosts.\"a b\"]\nurl = \"https://a\"":                               "valid name",
		"[hosts.a]\nurl = \"https://a\"\nkey = 1":                            "not known",
		"[hosts.a]\nurl = \"https://a\"\n[hosts.a.nodes]\nn = []":            "0 keys",
		"[hosts.a]\nurl = \"https://a\"\n[hosts.a.nodes]\nn = [\"ssh-rsa\"]": "nodes.n",
		"[hosts.a]\nurl = \"https://a\"\n[hosts.a.nodes]\n\"../x\" = []":     "valid name",
		strings.Repeat("#", 1<<20+1):                                         "larger",
		strings.Replace(good, "ssh-ed25519 AAAA", "ssh-ed25519  AAAA", 1):    "spelling",
	} {
		if _, err := hosts.Parse(bad); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%.80s: %v", bad, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(good)
	f.Add("current = \"auto\"")
	f.Add("[hosts.a]\nurl = \"https://a\"\n[hosts.a.root]\nkey = \"" + one + "\"\nepoch = 2\n" +
		"[[hosts.a.root.nodes]]\nkey = \"" + two + "\"\nepoch = 2\n" +
		"after = 2026-01-01T00:00:00Z\nbefore = 2026-02-01T00:00:00Z\n")
	f.Fuzz(func(t *testing.T, text string) {
		l, err := hosts.Parse(text)
		if err != nil {
			return
		}
		b, err := l.Encode()
		if err != nil {
			t.Fatal(err)
		}
		again, err := hosts.Parse(string(b))
		if err != nil {
			t.Fatalf("%q: %v", b, err)
		}
		if c, err := again.Encode(); err != nil || string(b) != string(c) {
			t.Fatalf("%q and %q: %v", b, c, err)
		}
	})
}

// TestPin checks that a node's key signs for its node alone, and that a revoked key signs nothing.
func TestPin(t *testing.T) {
	l, err := hosts.Parse(good)
	if err != nil {
		t.Fatal(err)
	}
	first, err := key.Parse(one)
	if err != nil {
		t.Fatal(err)
	}
	second, err := key.Parse(two)
	if err != nil {
		t.Fatal(err)
	}
	vouch := func(node string, k key.Public, revoked ...key.Public) bool {
		trust := &key.Trust{}
		trust.Add(key.Entry{Key: second, Role: key.Node}) // not of this host
		for _, r := range revoked {
			trust.Revoke(r.ID())
		}
		if err := l.Hosts["work"].Pin(trust, node); err != nil {
			t.Fatal(err)
		}
		_, err := trust.Vouch(k, key.Node, time.Now())
		return err == nil
	}
	if !vouch("n1", first) || !vouch("n2", second) || !vouch("", second) || vouch("n1", second) ||
		vouch("n3", first) || vouch("n1", first, first) {
		t.Error("a key signs for another node, or not for its own")
	}
}

// TestFiles checks that files are private, that damaged ones are errors, and that no error shows a
// secret.
// TestOneAddress: of hosts with one address, each has its own token, whatever the others are called.
func TestOneAddress(t *testing.T) {
	s := store(t)
	asked := make(chan string, 10)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/ListTokens") { // not the greeting of a plain port
			asked <- r.Header.Get("Authorization")
		}
		w.WriteHeader(http.StatusUnauthorized)
	}))
	defer server.Close()
	for _, name := range []string{"a", "b", "c"} {
		file, err := s.TakeToken(name, strings.NewReader("token-of-"+name))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Change(t.Context(), func(l *hosts.List) error {
			l.Hosts[name] = &hosts.Host{URL: server.URL, TokenFile: file}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"a", "b", "c"} {
		c, err := hosts.Client{Dir: s.Dir.Root}.Server(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Server.ListTokens(t.Context(), connect.NewRequest(&v1.ListTokensRequest{}))
		if got := <-asked; err == nil || got != "Bearer token-of-"+name {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestFiles(t *testing.T) {
	s := store(t)
	k, err := s.ClientKey(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if again, err := s.ClientKey(t.Context()); err != nil || again.Public != k.Public {
		t.Fatal(err)
	}
	path := s.Dir.Path("client", "key")
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatal(info.Mode(), err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, damaged := range map[string]string{"cut": string(text[:20]), "empty": "",
		"long": string(text) + "AA", "other": strings.Repeat("!", 44)} {
		if err := os.WriteFile(path, []byte(damaged), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := s.ClientKey(t.Context())
		if turnstone.KindOf(err) != turnstone.KindInvalid || turnstone.HintOf(err) == "" ||
			strings.Contains(err.Error(), string(text[:20])) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := s.ClientKey(t.Context()); err == nil || !strings.Contains(err.Error(), "0640") {
		t.Error(err)
	}
	file, err := s.TakeToken("work", strings.NewReader("secret\n"))
	if err != nil {
		t.Fatal(err)
	}
	if token, err := hosts.ReadToken(file); err != nil || token != "secret" {
		t.Fatal(err)
	}
	for _, bad := range []string{"", "\n", "two words", "a\x00b", strings.Repeat("x", 17<<10)} {
		if _, err := s.TakeToken("bad", strings.NewReader(bad)); err == nil {
			t.Errorf("%.20q is a token", bad)
		}
	}
	if err := s.Forget(&hosts.Host{TokenFile: file}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("the token is still there")
	}
	own := filepath.Join(t.TempDir(), "own")
	if err := os.WriteFile(own, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Forget(&hosts.Host{TokenFile: own}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(own); err != nil {
		t.Error("a file of the user's is removed")
	}
}

// TestDamagedList checks that a damaged list is an error which names the file, and is not replaced.
func TestDamagedList(t *testing.T) {
	s := store(t)
	path := s.Dir.Path(hosts.File)
	for _, c := range []struct {
		text string
		mode os.FileMode
	}{{"[hosts", 0o600}, {good[:150], 0o600}, {good, 0o622}} {
		if err := os.WriteFile(path, []byte(c.text), c.mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, c.mode); err != nil {
			t.Fatal(err)
		}
		err := s.Change(t.Context(), func(*hosts.List) error { return nil })
		if turnstone.KindOf(err) != turnstone.KindInvalid || turnstone.HintOf(err) == "" ||
			!strings.Contains(err.Error(), path) {
			t.Errorf("%.20s: %v", c.text, err)
		}
		if b, err := os.ReadFile(path); err != nil || string(b) != c.text {
			t.Errorf("%s: %v", b, err)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/zero", path); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Load(); err == nil {
		t.Error("a link to a device is a list")
	}
}

// TestConcurrent changes the list and makes the key from several goroutines at once.
func TestConcurrent(t *testing.T) {
	s := store(t)
	var wg sync.WaitGroup
	keys := make([]channel.PublicKey, 8)
	for i := range keys {
		wg.Go(func() {
			k, err := s.ClientKey(t.Context())
			if err != nil {
				t.Error(err)
			}
			keys[i] = k.Public
			if err := s.Change(t.Context(), func(l *hosts.List) error {
				l.Hosts[fmt.Sprint("h", i)] = &hosts.Host{URL: "https://h"}
				return nil
			}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	l, err := s.Load()
	if err != nil || len(l.Hosts) != len(keys) {
		t.Fatal(len(l.Hosts), err)
	}
	for _, k := range keys {
		if k != keys[0] {
			t.Fatal("there are two keys")
		}
	}
}
