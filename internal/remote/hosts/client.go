package hosts

import (
	"context"
	"crypto/hkdf"
	"crypto/sha256"
	"net"
	"os"
	"path/filepath"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/channel/attest"
	"turnstone.dev/turnstone/internal/proof/key"
	"turnstone.dev/turnstone/internal/remote"
	"turnstone.dev/turnstone/internal/statedir"
)

// SocketFile is the name of the operator's socket in the state directory of a server.
const SocketFile = "server.sock"

// A Client connects to hosts.
type Client struct {
	Dir   string // the state directory; empty: the user's
	Token string // in place of the tokens of hosts; empty: theirs
	// Key is the client's key; zero: that of the state directory.
	Key channel.KeyPair
	// Avoid returns the nodes that what With's servers make avoids; nil: none.
	Avoid func(ctx context.Context) []string
}

// Selected returns the name of the host that the list selects, or "".
func (c Client) Selected() (string, error) {
	dir, err := statedir.Locate(c.Dir)
	if err != nil {
		return "", err
	}
	if _, err := os.Lstat(filepath.Join(dir, File)); err != nil {
		return "", nil
	}
	list, err := (Store{Dir: &statedir.Dir{Root: dir}}).Load()
	if err != nil {
		return "", err
	}
	return list.Current, nil
}

// Own returns the server of this machine over the operator's socket, also if none runs: start is called
// when nobody listens there, and returns when somebody does.
func (c Client) Own(ctx context.Context, start func(ctx context.Context) error) (*remote.Server, error) {
	store, err := c.store()
	if err != nil {
		return nil, err
	}
	address, err := remote.ParseAddress("unix:" + store.Dir.Path(SocketFile))
	if err != nil {
		return nil, err
	}
	pair, err := c.key(ctx, store)
	if err != nil {
		return nil, err
	}
	return remote.NewServer(remote.ServerOptions{Address: address, Key: pair, Own: true, Start: start,
		Statements: shelf{store, address}}), nil
}

// key returns the client's key.
func (c Client) key(ctx context.Context, s Store) (channel.KeyPair, error) {
	if c.Key.Public != (channel.PublicKey{}) {
		return c.Key, nil
	}
	return s.ClientKey(ctx)
}

// store opens the state directory, which it creates.
func (c Client) store() (Store, error) {
	dir, err := statedir.Open(c.Dir)
	return Store{Dir: dir}, err
}

// LastSession returns the path of a file that notes the session which was used last at an address.
func (c Client) LastSession(address remote.Address) (string, error) {
	store, err := c.store()
	if err != nil {
		return "", err
	}
	dir, err := store.Dir.MkdirAll(folder, "last")
	if err != nil {
		return "", saved(dir, err)
	}
	return filepath.Join(dir, addressName(address)), nil
}

// Server returns the server of a host: its name or its address, Auto or Local. It is
// nil for this machine alone.
func (c Client) Server(ctx context.Context, host string) (*remote.Server, error) {
	switch {
	case host == "" || host == Local:
		return nil, nil
	case host == Auto:
		return c.ownServer(ctx)
	}
	store, err := c.store()
	if err != nil {
		return nil, err
	}
	list, err := store.Load()
	if err != nil {
		return nil, err
	}
	if h := list.Hosts[host]; h != nil { // others may have its address, with other tokens and pins
		address, err := remote.ParseAddress(h.URL)
		if err != nil {
			return nil, err
		}
		return c.connect(ctx, store, address, host, h)
	}
	if !strings.Contains(host, ":") {
		_, _, err := list.Find(host)
		return nil, err
	}
	address, err := remote.ParseAddress(host)
	if err != nil {
		return nil, err
	}
	name, h, err := list.Find(address.String())
	if err != nil {
		if !address.Loopback() {
			return nil, err // nobody could vouch for its nodes
		}
		h = &Host{URL: host}
	}
	return c.connect(ctx, store, address, name, h)
}

// With is Server for a host that is not this machine, with tokens from elsewhere.
func (c Client) With(ctx context.Context, host string, token remote.Token) (*remote.Server, error) {
	store, err := c.store()
	if err != nil {
		return nil, err
	}
	list, err := store.Load()
	if err != nil {
		return nil, err
	}
	name, h := host, list.Hosts[host]
	if h == nil {
		if name, h, err = list.Find(host); err != nil {
			return nil, err
		}
	}
	address, err := remote.ParseAddress(h.URL)
	if err != nil {
		return nil, err
	}
	pair, err := c.key(ctx, store)
	if err != nil {
		return nil, err
	}
	return remote.NewServer(remote.ServerOptions{Address: address, Key: pair, Token: token, Avoid: c.Avoid,
		Pins: pins(store, address, name, h)}), nil
}

// Operator returns the server of this machine over the operator's socket. The error is of kind
// Unavailable if none runs.
func (c Client) Operator(ctx context.Context) (*remote.Server, error) {
	dir, err := statedir.Locate(c.Dir)
	if err != nil {
		return nil, err
	}
	address, err := remote.ParseAddress("unix:" + filepath.Join(dir, SocketFile))
	if err != nil {
		return nil, err
	}
	if err := address.Own(ctx); err != nil {
		return nil, err
	}
	store, err := c.store()
	if err != nil {
		return nil, err
	}
	return c.connect(ctx, store, address, "", &Host{})
}

// ownServer returns the server of this machine, or nil if none runs.
func (c Client) ownServer(ctx context.Context) (*remote.Server, error) {
	s, err := c.Operator(ctx)
	if turnstone.KindOf(err) == turnstone.KindUnavailable {
		return nil, nil
	}
	return s, err
}

// connect returns the server at an address, of the host with a name, if it has one. A socket of this user needs no pins and no token.
func (c Client) connect(ctx context.Context, store Store, address remote.Address,
	name string, h *Host) (*remote.Server, error) {
	pair, err := c.key(ctx, store)
	if err != nil {
		return nil, err
	}
	o := remote.ServerOptions{Address: address, Key: pair, Token: c.token(h),
		Pins: pins(store, address, name, h), Book: book{store, address},
		Statements: shelf{store, address}}
	if h.SealFile != "" {
		o.Seal = func() ([]byte, error) { return ReadSeal(h.SealFile) }
	}
	if address.Socket() != "" && !h.Pinned() {
		o.Own, o.Book = true, nil
	}
	return remote.NewServer(o), nil
}

// inside is the address of a server in this process.
const inside = "http://localhost"

// Inside returns the server of this process that dial reaches, for a caller with a token. It is a
// caller of the network for the server; the node of the state directory is trusted, and those of its
// lists. Each caller has a key of its own, which is derived from this client's.
func (c Client) Inside(ctx context.Context, dial func(context.Context) (net.Conn, error),
	caller string, token remote.Token) (*remote.Server, error) {
	store, err := c.store()
	if err != nil {
		return nil, err
	}
	own, err := store.ClientKey(ctx)
	if err != nil {
		return nil, err
	}
	pair, err := derived(own, caller)
	if err != nil {
		return nil, err
	}
	address, err := remote.ParseAddress(inside)
	if err != nil {
		return nil, err
	}
	return remote.NewServer(remote.ServerOptions{Address: address, Key: pair, Token: token,
		Pins: pins(store, address, "", &Host{}), Dial: dial}), nil
}

// derived returns the key of a caller who has none.
func derived(own channel.KeyPair, caller string) (channel.KeyPair, error) {
	private := own.Private()
	defer clear(private)
	b, err := hkdf.Key(sha256.New, private, nil, "turnstone client of "+caller, channel.KeySize)
	if err != nil {
		return channel.KeyPair{}, turnstone.NewError("host.key", turnstone.KindInternal,
			"the caller's key", err)
	}
	defer clear(b)
	return channel.LoadKeyPair(b)
}

// Unpinned returns the server at an address, to ask for its nodes, whose channels are not trusted. own
// reports a socket of this user, whose nodes need no pins.
func (c Client) Unpinned(ctx context.Context, address remote.Address, h *Host) (
	s *remote.Server, own bool, err error) {
	store, err := c.store()
	if err != nil {
		return nil, false, err
	}
	pair, err := c.key(ctx, store)
	if err != nil {
		return nil, false, err
	}
	own = address.Socket() != "" && address.Own(ctx) == nil
	return remote.NewServer(remote.ServerOptions{Address: address, Key: pair, Own: own,
		Token: c.token(h), Pins: pins(store, address, "", &Host{})}), own, nil
}

// noFile returns the error about a missing file of a token.
func noFile(path string) error {
	return turnstone.Errorf("host.token", turnstone.KindInvalid, path, "does not exist").
		WithHint("write a token of turn token create into it (mode 0600), or set TURN_TOKEN")
}

// token returns the token of TURN_TOKEN, or of the host.
func (c Client) token(h *Host) remote.Token {
	return func() (string, error) {
		switch {
		case c.Token != "":
			return strings.TrimSpace(c.Token), nil
		case h.TokenFile == "":
			return "", nil
		}
		return ReadToken(h.TokenFile)
	}
}

// pins returns who may sign the statements of nodes: the keys of the host, those that its root
// certifies, and on this machine the key of this state directory's own node. The list is read for each
// statement, so that a process that stays follows it: h counts for a host that the list does not have.
func pins(s Store, address remote.Address, name string, h *Host) remote.Pins {
	return func(ctx context.Context, node string, certificate []byte) (attest.Pins, error) {
		h, err := s.now(name, h)
		if err != nil {
			return nil, err
		}
		ring := key.Ring{Dir: s.Dir}
		trust, err := ring.List()
		if err != nil {
			return nil, err
		}
		if err := h.Pin(trust, node); err != nil {
			return nil, err
		}
		if address.Loopback() {
			own, err := ring.Own()
			if err != nil {
				return nil, err
			}
			if k, has := own[key.Node]; has {
				trust.Add(key.Entry{Key: k, Role: key.Node})
			}
		}
		if h.Root != nil {
			return s.certified(ctx, trust, name, h, node, certificate)
		}
		return trust, nil
	}
}

// now returns the host with a name as the list has it now, if that is at the same address.
func (s Store) now(name string, h *Host) (*Host, error) {
	if name == "" {
		return h, nil
	}
	list, err := s.Load()
	if err != nil {
		return nil, err
	}
	if o := list.Hosts[name]; o != nil && o.URL == h.URL {
		return o, nil
	}
	return h, nil
}
