package control

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"connectrpc.com/connect"
	"golang.org/x/crypto/ssh"
	"google.golang.org/protobuf/proto"

	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	connectv1 "turnstone.dev/turnstone/internal/api/turnstone/v1/turnstonev1connect"
	"turnstone.dev/turnstone/internal/kube/agents"
	"turnstone.dev/turnstone/internal/remote/hosts"
)

// A fake is a server that answers every list with all of its sandboxes, and every creation with one.
type fake struct {
	connectv1.UnimplementedServerServiceHandler
	connectv1.UnimplementedSandboxServiceHandler

	mu   sync.Mutex
	has  []*v1.Sandbox
	keys []string // of the tenants' creations

	nodes   []*v1.Node
	lost    []*v1.LostNode
	listed  int
	avoided []string // of the last creation
	asked   []*v1.CreateTokenRequest
}

func (f *fake) ListNodes(context.Context, *connect.Request[v1.ListNodesRequest]) (
	*connect.Response[v1.ListNodesResponse], error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.listed++
	return connect.NewResponse(&v1.ListNodesResponse{Nodes: f.nodes, Lost: f.lost}), nil
}

func (f *fake) ListTokens(context.Context, *connect.Request[v1.ListTokensRequest]) (
	*connect.Response[v1.ListTokensResponse], error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	a := &v1.ListTokensResponse{Tokens: []*v1.Token{{Tenant: "user", Subject: "kubernetes namespace other"}}}
	for _, r := range f.asked {
		a.Tokens = append(a.Tokens, &v1.Token{Tenant: r.Tenant, Subject: r.Subject})
	}
	return connect.NewResponse(a), nil
}

func (f *fake) CreateToken(_ context.Context, r *connect.Request[v1.CreateTokenRequest]) (
	*connect.Response[v1.CreateTokenResponse], error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, r.Msg)
	return connect.NewResponse(&v1.CreateTokenResponse{Token: &v1.Token{Tenant: r.Msg.Tenant},
		Secret: "token-of-" + r.Msg.Tenant}), nil
}

func (f *fake) ListSandboxes(context.Context, *connect.Request[v1.ListSandboxesRequest]) (
	*connect.Response[v1.ListSandboxesResponse], error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return connect.NewResponse(&v1.ListSandboxesResponse{Sandboxes: f.has}), nil
}

func (f *fake) CreateSandbox(_ context.Context, r *connect.Request[v1.CreateSandboxRequest]) (
	*connect.Response[v1.CreateSandboxResponse], error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.keys, f.avoided = append(f.keys, r.Msg.IdempotencyKey), r.Msg.AvoidNodes
	return connect.NewResponse(&v1.CreateSandboxResponse{Sandbox: &v1.Sandbox{SandboxId: "sb_1"}}), nil
}

// client returns a client of the server whose key is in a folder.
func (f *fake) client(t *testing.T, dir string) *Client {
	t.Helper()
	at := filepath.Join(t.TempDir(), "s")
	l, err := new(net.ListenConfig).Listen(t.Context(), "unix", at)
	must(t, err)
	mux := http.NewServeMux()
	mux.Handle(connectv1.NewServerServiceHandler(f))
	mux.Handle(connectv1.NewSandboxServiceHandler(f))
	s := &http.Server{Handler: mux}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close() })
	token := filepath.Join(t.TempDir(), "token")
	must(t, os.WriteFile(token, []byte("an-operators-token"), 0o600))
	must(t, os.WriteFile(filepath.Join(dir, hosts.File), []byte("[hosts.test]\nurl = \"unix:"+at+"\"\n"), 0o600))
	c, err := New(t.Context(), Options{Host: "test", Dir: dir, TokenFile: token})
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestKeys: the key of a call comes from the operator's key and the object. A restarted operator makes the
// same call, and whoever knows the object, the call and this program makes another.
func TestKeys(t *testing.T) {
	f, dir := &fake{}, t.TempDir()
	key := func(dir, call, uid string) string { return f.client(t, dir).once(call, uid) }
	const uid = "5f4b7c0e-9d1a-4a3f-8a67-0d9f4c1b2a3e"
	mine := key(dir, "sandbox", uid)
	if again := key(dir, "sandbox", uid); again != mine {
		t.Errorf("a restarted operator makes another call: %s, %s", mine, again)
	}
	all := []string{mine, key(t.TempDir(), "sandbox", uid), key(dir, "session", uid), key(dir, "turn", uid),
		key(dir, "sandbox", uid+".1"), key(dir, "sandbox", strings.ToUpper(uid)), key(dir, "sandbox", "")}
	slices.Sort(all)
	if n := len(slices.Compact(slices.Clone(all))); n != 7 {
		t.Errorf("two calls have one key: %q", all)
	}
	name, sum, ok := strings.Cut(mine, ".")
	if !ok || name != "sandbox" || len(sum) != 32 || strings.Contains(mine, uid[:8]) {
		t.Errorf("the key is %s", mine)
	}
	// What a client sends is this key, and the request is not changed by it.
	c := f.client(t, dir)
	r := &v1.CreateSandboxRequest{IdempotencyKey: uid, ManagedBy: "kubernetes/c/a/box/" + uid}
	before := proto.CloneOf(r)
	for _, namespace := range []string{"a", "b"} {
		_, err := c.Create(t.Context(), namespace, r)
		must(t, err)
	}
	if !slices.Equal(f.keys, []string{mine, mine}) || !proto.Equal(before, r) {
		t.Errorf("the calls had the keys %q, not %s", f.keys, mine)
	}
	// Without the operator's key nobody derives it.
	for _, secret := range [][]byte{nil, []byte("turnstone operator: idempotency keys v1"), make([]byte, 32)} {
		if (&Client{secret: secret}).once("sandbox", uid) == mine {
			t.Error("a key of another secret is the same")
		}
	}
}

// TestFleet: nodes whose keys are not pinned are not trusted, and what is made avoids them. The nodes are
// listed once for many creations, and the list of hosts counts as it is now.
func TestFleet(t *testing.T) {
	key := func(b byte) string {
		k, err := ssh.NewPublicKey(ed25519.NewKeyFromSeed(bytes.Repeat([]byte{b}, 32)).Public())
		must(t, err)
		return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(k)))
	}
	f, dir := &fake{nodes: []*v1.Node{{Name: "a", Key: key(1)}, {Name: "b", Key: key(2), Draining: true}},
		lost: []*v1.LostNode{{Node: &v1.Node{Name: "c", Draining: true}}}}, t.TempDir()
	c := f.client(t, dir)
	path := filepath.Join(dir, hosts.File)
	text, err := os.ReadFile(path)
	must(t, err)
	pin := func(name string, b byte) {
		must(t, os.WriteFile(path, fmt.Appendf(nil, "%s[hosts.test.nodes]\n%s = [%q]\n", text, name, key(b)), 0o600))
	}
	pin("a", 1)
	create := func(want ...string) {
		t.Helper()
		_, err := c.Create(t.Context(), "ns", &v1.CreateSandboxRequest{IdempotencyKey: "k"})
		must(t, err)
		if !slices.Equal(f.avoided, want) {
			t.Errorf("the creation avoids %q, not %q", f.avoided, want)
		}
	}
	for range 5 {
		create("b")
	}
	if f.listed != 1 {
		t.Errorf("the nodes were listed %d times", f.listed)
	}
	all, err := c.Fleet(t.Context())
	must(t, err)
	if len(all) != 3 || all[0] != (agents.Node{Name: "a"}) || !all[1].Draining || all[1].Untrusted == "" ||
		all[2] != (agents.Node{Name: "c", Lost: true, Draining: true}) {
		t.Errorf("the nodes are %+v", all)
	}
	pin("b", 2)
	_, err = c.Fleet(t.Context())
	must(t, err)
	create("a")
	pin("b", 1) // another node's key
	_, err = c.Fleet(t.Context())
	must(t, err)
	create("a", "b")
}

// TestList: a server that does not keep to the filter, such as one that does not know it, makes nobody's
// sandbox an object's: the operator ends those that it finds.
func TestList(t *testing.T) {
	f := &fake{}
	for id, by := range map[string]string{"none": "", "mine": "kubernetes/c/a/box/u1", "older": "kubernetes/c/a/box/u0",
		"longer": "kubernetes/c/a/box2/u1", "elsewhere": "kubernetes/c/b/box/u1", "cluster": "kubernetes/d/a/box/u1"} {
		f.has = append(f.has, &v1.Sandbox{SandboxId: id, ManagedBy: by})
	}
	c := f.client(t, t.TempDir())
	for by, want := range map[string][]string{
		"kubernetes/c/a/box/u1": {"mine"},
		"kubernetes/c/a/box/":   {"mine", "older"},
		"kubernetes/c/a/":       {"longer", "mine", "older"},
		"kubernetes/c/a/box":    nil,
		"":                      nil,
	} {
		all, err := c.List(t.Context(), "a", by)
		must(t, err)
		var ids []string
		for _, s := range all {
			ids = append(ids, s.SandboxId)
		}
		if slices.Sort(ids); !slices.Equal(ids, want) {
			t.Errorf("%q: %v", by, ids)
		}
	}
}
