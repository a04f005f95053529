// Package control calls the control API of a server for the tenants of a cluster: each namespace is a
// tenant, for which the operator's token makes others that live for an hour, or as long as it does itself.
package control

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/remote"
	"turnstone.dev/turnstone/internal/remote/hosts"
	"turnstone.dev/turnstone/internal/remote/runner"
	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/wire"
)

// Options say which server, and with what.
type Options struct {
	// Host is the server's name in Dir's list of hosts, or its address.
	Host string
	// Dir is a folder with the list of hosts and the key of this client; empty: the user's.
	Dir string
	// TokenFile is a file with the operator's token, which is read for each new token of a tenant.
	TokenFile string
	// Scopes are what the tokens of tenants grant; nil: Sandboxes. The operator's own token has to grant
	// these, tokens:issue and tenants:issue.
	Scopes []string
}

// Sandboxes returns the scopes for sandboxes.
func Sandboxes() []string { return slices.Clone(sandboxScopes) }

// Turns returns the scopes for turns, sessions and templates.
func Turns() []string {
	return []string{string(auth.TurnsRun), string(auth.TurnsRead), string(auth.TurnsCancel),
		string(auth.SessionsRead), string(auth.SessionsWrite), string(auth.SessionsDelete),
		string(auth.TemplatesRead), string(auth.TemplatesWrite)}
}

var sandboxScopes = []string{string(auth.SandboxesCreate), string(auth.SandboxesRead), string(auth.SandboxesConnect),
	string(auth.SandboxesControl), string(auth.SandboxesDelete), string(auth.SandboxesManage),
	string(auth.TemplatesRead)}

// poolScopes are what a token for a tenant's pools grants. It is another token, so that an operator
// whose own token does not grant this serves all but pools.
var poolScopes = []string{string(auth.PoolsWrite)}

// A Client calls the control API. Its methods are safe for concurrent use. Close it.
type Client struct {
	o   Options
	own *remote.Server
	// secret is of this client's key: another operator with the same key makes the same calls.
	secret []byte
	make   func(ctx context.Context, token remote.Token) (*remote.Server, error)

	mu  sync.Mutex
	all map[string]*tenant // by the namespace, and its use

	fleet fleet
}

// A tenant is a namespace, for what its token grants.
type tenant struct {
	scopes []string
	server *remote.Server
	boxes  *remote.Sandboxes
	host   *runner.Host // its sessions, turns and templates

	mu    sync.Mutex
	token string
	renew time.Time
}

// New returns a client. It connects when it is used.
func New(ctx context.Context, o Options) (*Client, error) {
	read := func() (string, error) { return hosts.ReadToken(o.TokenFile) }
	if o.Scopes == nil {
		o.Scopes = Sandboxes()
	}
	c := &Client{o: o, all: make(map[string]*tenant)}
	c.make = func(ctx context.Context, token remote.Token) (*remote.Server, error) {
		return hosts.Client{Dir: o.Dir, Avoid: c.untrusted}.With(ctx, o.Host, token)
	}
	var err error
	if c.own, err = c.make(ctx, read); err != nil {
		return nil, err
	}
	c.secret, err = c.own.Secret("turnstone operator: idempotency keys v1")
	return c, err
}

// Close closes idle connections.
func (c *Client) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range c.all {
		_ = t.host.Close() // with the server
	}
	return c.own.Close()
}

// Nodes returns the nodes that answer the server, and how many requests wait for room. It needs the scope
// nodes:read.
func (c *Client) Nodes(ctx context.Context) (nodes []*v1.Node, waiting int, err error) {
	a, err := c.own.Server.ListNodes(ctx, connect.NewRequest(&v1.ListNodesRequest{}))
	if err != nil {
		return nil, 0, err
	}
	return a.Msg.Nodes, int(a.Msg.Waiting), nil
}

// of returns the tenant of a namespace, with a token that is valid.
func (c *Client) of(ctx context.Context, namespace string) (*tenant, error) {
	return c.with(ctx, namespace, namespace, c.o.Scopes)
}

// with is of for a token that grants scopes, which is kept as name.
func (c *Client) with(ctx context.Context, name, namespace string, scopes []string) (*tenant, error) {
	if namespace == auth.OperatorTenant {
		return nil, turnstone.Errorf("kube.tenant", turnstone.KindDenied, "namespace "+namespace,
			"has the name of the server's own tenant").WithHint("use another namespace")
	}
	c.mu.Lock()
	t := c.all[name]
	if t == nil {
		t = &tenant{scopes: scopes}
		s, err := c.make(ctx, func() (string, error) {
			t.mu.Lock()
			defer t.mu.Unlock()
			return t.token, nil
		})
		if err != nil {
			c.mu.Unlock()
			return nil, err
		}
		t.server, t.boxes, t.host = s, s.AllSandboxes(), runner.Open(s, runner.Options{Dir: c.o.Dir})
		c.all[name] = t
	}
	c.mu.Unlock()
	return t, c.renewed(ctx, t, namespace)
}

// renewed makes a tenant's token, unless the one that is there lives for long enough.
func (c *Client) renewed(ctx context.Context, t *tenant, namespace string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if time.Now().Before(t.renew) {
		return nil
	}
	life, err := c.lifeOf()
	if err != nil {
		return err
	}
	a, err := c.own.Server.CreateToken(ctx, connect.NewRequest(&v1.CreateTokenRequest{Name: "kubernetes",
		Ttl: durationpb.New(life), Tenant: namespace, Scopes: t.scopes,
		Subject: subjectPrefix + namespace}))
	if err != nil {
		return err
	}
	t.token, t.renew = a.Msg.Secret, time.Now().Add(life/2)
	return nil
}

// once returns the idempotency key of a call that is made once for an object: who knows the object's UID
// cannot use the key before this client does.
func (c *Client) once(call, uid string) string {
	h := hmac.New(sha256.New, c.secret)
	_, _ = io.WriteString(h, call+"\x00"+uid) // documented never to fail
	return call + "." + hex.EncodeToString(h.Sum(nil)[:16])
}

// Create creates a sandbox, of which this client is the owner.
func (c *Client) Create(ctx context.Context, namespace string, r *v1.CreateSandboxRequest) (*v1.Sandbox, error) {
	t, err := c.of(ctx, namespace)
	if err != nil {
		return nil, err
	}
	r = proto.Clone(r).(*v1.CreateSandboxRequest)
	r.IdempotencyKey = c.once("sandbox", r.IdempotencyKey)
	a, err := t.server.Sandboxes.CreateSandbox(ctx, connect.NewRequest(r))
	if err != nil {
		return nil, err
	}
	return a.Msg.Sandbox, nil
}

// Get returns a sandbox.
func (c *Client) Get(ctx context.Context, namespace, id string) (*v1.Sandbox, error) {
	t, err := c.of(ctx, namespace)
	if err != nil {
		return nil, err
	}
	a, err := t.server.Sandboxes.GetSandbox(ctx, connect.NewRequest(&v1.GetSandboxRequest{SandboxId: id}))
	if err != nil {
		return nil, err
	}
	return a.Msg.Sandbox, nil
}

// maxPages bounds a list.
const maxPages = 1000

// List implements agents.Server.
func (c *Client) List(ctx context.Context, namespace, by string) ([]*v1.Sandbox, error) {
	t, err := c.of(ctx, namespace)
	if err != nil {
		return nil, err
	}
	return managed(ctx, t, by)
}

// managed lists the sandboxes that by manages.
func managed(ctx context.Context, t *tenant, by string) ([]*v1.Sandbox, error) {
	all, err := list(ctx, t, &v1.SandboxFilter{ManagedBy: by})
	// What the filter did not keep out belongs to others: a server that does not know the filter answers all.
	return slices.DeleteFunc(all, func(s *v1.Sandbox) bool { return !manages(by, s.ManagedBy) }), err
}

// manages reports whether by, or what begins so if it ends with "/", is what manages a sandbox.
func manages(by, is string) bool {
	return by != "" && (is == by || strings.HasSuffix(by, "/") && strings.HasPrefix(is, by))
}

func list(ctx context.Context, t *tenant, f *v1.SandboxFilter) (all []*v1.Sandbox, err error) {
	page := &v1.Page{}
	for range maxPages {
		a, err := t.server.Sandboxes.ListSandboxes(ctx, connect.NewRequest(&v1.ListSandboxesRequest{Page: page,
			Filter: f}))
		if err != nil {
			return nil, err
		}
		for _, s := range a.Msg.Sandboxes {
			if !s.Removed {
				all = append(all, s)
			}
		}
		if page.Token = a.Msg.NextPageToken; page.Token == "" {
			return all, nil
		}
	}
	return nil, turnstone.Errorf("kube.list", turnstone.KindInternal, "the list of sandboxes", "has no end")
}

// Delete removes a sandbox; it does nothing if there is none.
func (c *Client) Delete(ctx context.Context, namespace, id string) error {
	t, err := c.of(ctx, namespace)
	if err != nil {
		return err
	}
	return remove(ctx, t, id)
}

func remove(ctx context.Context, t *tenant, id string) error {
	if err := t.boxes.Remove(ctx, turnstone.SandboxID(id)); turnstone.KindOf(err) != turnstone.KindNotFound {
		return err
	}
	return nil
}

// Pause pauses a sandbox with its memory.
func (c *Client) Pause(ctx context.Context, namespace, id string) error {
	t, err := c.of(ctx, namespace)
	if err != nil {
		return err
	}
	return t.boxes.Pause(ctx, turnstone.SandboxID(id))
}

// Resume resumes a paused sandbox.
func (c *Client) Resume(ctx context.Context, namespace, id string) error {
	t, err := c.of(ctx, namespace)
	if err != nil {
		return err
	}
	return t.boxes.Resume(ctx, turnstone.SandboxID(id))
}

// SetLife sets the time to a sandbox's stop, from now.
func (c *Client) SetLife(ctx context.Context, namespace, id string, life time.Duration) error {
	t, err := c.of(ctx, namespace)
	if err != nil {
		return err
	}
	_, err = t.server.Sandboxes.SetSandboxTimeout(ctx, connect.NewRequest(&v1.SetSandboxTimeoutRequest{
		SandboxId: id, Timeout: durationpb.New(max(life, time.Second))}))
	return err
}

// Open opens a channel to a sandbox's agent. The caller closes it.
func (c *Client) Open(ctx context.Context, namespace, id string) (io.ReadWriteCloser, error) {
	t, err := c.of(ctx, namespace)
	if err != nil {
		return nil, err
	}
	return t.boxes.Open(ctx, turnstone.SandboxID(id))
}

// Use calls f with a connection to a sandbox's agent.
func (c *Client) Use(ctx context.Context, namespace, id string, f func(*wire.Client) error) error {
	stream, err := c.Open(ctx, namespace, id)
	if err != nil {
		return err
	}
	w := wire.NewClient(stream)
	defer func() { _ = w.Close() }()
	return f(w)
}
