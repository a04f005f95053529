package key

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/crypto/ssh/agent"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/statedir"
)

// A Ring has the keys of a state directory:
//
//	keys/node, keys/node.pub      made on first use
//	keys/caller, keys/caller.pub  made by turn key; without the first file, a key of the SSH agent
//	trusted, revoked              lists of keys
type Ring struct {
	Dir *statedir.Dir
	Ask Passphrase // may be nil
	// Socket is the path of the SSH agent's socket; empty: SSH_AUTH_SOCK of the environment.
	Socket string
}

func (r Ring) path(role Role) string { return r.Dir.Path("keys", string(role)) }

// Trusted returns the path of the list of trusted keys.
func (r Ring) Trusted() string { return r.Dir.Path("trusted") }

// revokedAt returns the path of the list of revoked keys.
func (r Ring) revokedAt() string { return r.Dir.Path("revoked") }

// lock keeps other processes from changing the keys.
func (r Ring) lock(ctx context.Context) (*statedir.Lock, error) {
	dir, err := r.Dir.MkdirAll("keys")
	if err != nil {
		return nil, turnstone.Classify("key.lock", turnstone.KindUnavailable, dir, err, "")
	}
	return statedir.Acquire(ctx, filepath.Join(dir, "lock"), nil)
}

// NodeKey returns the key of this machine, which it makes on first use.
func (r Ring) NodeKey(ctx context.Context) (*Signer, error) {
	s, err := Load(r.path(Node), r.Ask)
	if turnstone.KindOf(err) != turnstone.KindNotFound {
		return s, err
	}
	l, err := r.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer l.Release()
	if s, err = Load(r.path(Node), r.Ask); turnstone.KindOf(err) != turnstone.KindNotFound {
		return s, err // another process was faster
	}
	return r.make(Node, nil)
}

// CallerKey returns the key of the user, or nil if there is none. A key of the SSH agent is looked
// up there.
func (r Ring) CallerKey(ctx context.Context) (*Signer, error) {
	s, err := Load(r.path(Caller), r.Ask)
	if turnstone.KindOf(err) != turnstone.KindNotFound {
		return s, err
	}
	p, _, err := r.public(Caller)
	if err != nil || p == nil {
		return nil, err
	}
	return r.fromAgent(ctx, func(o Public) bool { return o.Equal(*p) }, p.ID())
}

// public returns the public key of a role, or nil if there is none.
func (r Ring) public(role Role) (*Public, string, error) {
	b, err := os.ReadFile(r.path(role) + ".pub")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", turnstone.NewError("key.load", turnstone.KindUnavailable, r.path(role), err)
	}
	p, comment, err := ParsePublic(strings.TrimSpace(string(b)))
	if err != nil {
		return nil, "", turnstone.NewError("key.load", turnstone.KindInvalid,
			r.path(role)+".pub", err).WithHint(turnstone.HintOf(err))
	}
	return &p, comment, nil
}

// agentTime bounds an exchange with the SSH agent, which may ask its user.
const agentTime = 2 * time.Minute

// fromAgent returns the key of the SSH agent that wanted accepts; name is for messages.
func (r Ring) fromAgent(ctx context.Context, wanted func(Public) bool, name string) (*Signer,
	error) {
	fail := func(err error) (*Signer, error) {
		return nil, turnstone.NewError("key.agent", turnstone.KindUnavailable, "key "+name, err).
			WithHint("start the SSH agent, and add the key with ssh-add")
	}
	socket := r.Socket
	if socket == "" {
		socket = os.Getenv("SSH_AUTH_SOCK")
	}
	if socket == "" {
		return fail(errors.New("the SSH agent does not run: SSH_AUTH_SOCK is not set"))
	}
	dial := func() (net.Conn, error) {
		c, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "unix", socket)
		if err == nil {
			err = c.SetDeadline(time.Now().Add(agentTime))
		}
		return c, err
	}
	c, err := dial()
	if err != nil {
		return fail(err)
	}
	defer func() { _ = c.Close() }()
	keys, err := agent.NewClient(c).List()
	if err != nil {
		return fail(err)
	}
	for _, k := range keys {
		p, _, err := ParsePublic(k.String())
		if err != nil || !wanted(p) {
			continue
		}
		return NewSigner(agentSigner{k, dial})
	}
	return fail(errors.New("the SSH agent does not have the key"))
}

// make makes the key of a role and trusts it. The caller holds the lock.
func (r Ring) make(role Role, passphrase []byte) (*Signer, error) {
	comment := fmt.Sprintf("turnstone-%s-%s", role, time.Now().UTC().Format("20060102"))
	s, b, err := generate(comment, passphrase)
	if err == nil {
		// Trust comes first: a key without trust would sign turns that do not verify here.
		_, err = r.trust(Entry{Key: s.Public, Role: role, Comment: comment})
	}
	if err == nil {
		err = writeKey(r.path(role), b, s.Public, comment)
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Make makes the key of a role. An existing key is an error of kind Invalid: Rotate replaces it.
func (r Ring) Make(ctx context.Context, role Role, passphrase []byte) (*Signer, error) {
	l, err := r.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer l.Release()
	if err := r.free(role); err != nil {
		return nil, err
	}
	return r.make(role, passphrase)
}

// free reports that there is a key of this role.
func (r Ring) free(role Role) error {
	p, _, err := r.public(role)
	if err == nil && p == nil {
		if _, err = os.Lstat(r.path(role)); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
	}
	if err != nil {
		return err
	}
	return turnstone.Errorf("key.make", turnstone.KindInvalid, r.path(role),
		"there is a key already").WithHint("replace it with turn key rotate")
}

// Import makes the private key in the file at path the caller's key. Its passphrase stays.
func (r Ring) Import(ctx context.Context, path string) (*Signer, error) {
	b, err := ReadPrivate(path, "the key")
	if err != nil {
		return nil, err
	}
	s, err := parsePrivate(path, b, r.Ask)
	if err != nil {
		return nil, err
	}
	return s, r.take(ctx, s.Public, b)
}

// UseAgent makes a key of the SSH agent the caller's key: the one with the fingerprint id, or the
// first that can sign if id is empty.
func (r Ring) UseAgent(ctx context.Context, id string) (*Signer, error) {
	s, err := r.fromAgent(ctx, func(p Public) bool { return id == "" || p.ID() == id }, id)
	if err != nil {
		return nil, err
	}
	return s, r.take(ctx, s.Public, nil)
}

// take makes p the caller's key, and trusts it. b is the content of its file; nil: it has none.
func (r Ring) take(ctx context.Context, p Public, b []byte) error {
	l, err := r.lock(ctx)
	if err != nil {
		return err
	}
	defer l.Release()
	if err := r.free(Caller); err != nil {
		return err
	}
	const comment = "turnstone-caller"
	if _, err := r.trust(Entry{Key: p, Role: Caller, Comment: comment}); err != nil {
		return err
	}
	return writeKey(r.path(Caller), b, p, comment)
}

// Rotate replaces the key of a role by a new one. What the old key signed before now stays valid.
func (r Ring) Rotate(ctx context.Context, role Role, passphrase []byte) (old Public, s *Signer,
	err error) {
	l, err := r.lock(ctx)
	if err != nil {
		return old, nil, err
	}
	defer l.Release()
	p, _, err := r.public(role)
	if err == nil && p == nil {
		err = turnstone.Errorf("key.rotate", turnstone.KindNotFound, string(role)+" key",
			"there is none").WithHint("turn key make creates one")
	}
	if err != nil {
		return old, nil, err
	}
	// Statements have whole seconds; those of this second are still the old key's.
	until := time.Now().UTC().Truncate(time.Second).Add(time.Second)
	if err := r.retire(*p, role, until); err != nil {
		return old, nil, err
	}
	keep := r.path(role) + "." + until.Format("20060102T150405Z")
	for _, end := range []string{"", ".pub"} {
		err := os.Rename(r.path(role)+end, keep+end)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return old, nil, turnstone.NewError("key.rotate", turnstone.KindUnavailable, keep, err)
		}
	}
	s, err = r.make(role, passphrase)
	return *p, s, err
}

// Trust adds an entry to the list of trusted keys. added is false if the key is trusted like this
// already. A key has one role and one name: another one is an error of kind Invalid.
func (r Ring) Trust(ctx context.Context, e Entry) (added bool, err error) {
	l, err := r.lock(ctx)
	if err != nil {
		return false, err
	}
	defer l.Release()
	return r.trust(e)
}

func (r Ring) trust(e Entry) (added bool, err error) {
	if err := e.check(); err != nil {
		return false, turnstone.NewError("key.trust", turnstone.KindInvalid, "", err)
	}
	t, err := r.List()
	if err != nil {
		return false, err
	}
	id := e.Key.ID()
	if t.Revoked(id) {
		return false, turnstone.Errorf("key.trust", turnstone.KindInvalid, "key "+id, "is revoked").
			WithHint("remove it from " + r.revokedAt() + " first, or use another key")
	}
	known := false
	for _, o := range t.entries {
		if !o.Key.Equal(e.Key) {
			continue
		}
		if o.Role != e.Role || e.Name != "" && o.Name != e.Name {
			return false, turnstone.Errorf("key.trust", turnstone.KindInvalid, "key "+id,
				"is trusted as %s, and not as %s", o.principal(), e.principal()).
				WithHint("use another key for each role, or first run turn key untrust " + id)
		}
		always := o.After.IsZero() && o.Before.IsZero()
		known = known || inNamespace(o.Namespaces) &&
			(always || o.After.Equal(e.After) && o.Before.Equal(e.Before))
	}
	if known {
		return false, nil
	}
	return true, appendLine(r.Trusted(), e.Line())
}

// Untrust removes a key from the list of trusted keys: a fingerprint, or TYPE BASE64. What the key
// signed is then signed by an unknown key. The error is of kind NotFound if the key is not in the
// list, and Invalid if it signs the turns of this state directory.
func (r Ring) Untrust(ctx context.Context, name string) (id string, err error) {
	if id, err = parseID(strings.TrimSpace(name)); err != nil {
		return "", turnstone.NewError("key.untrust", turnstone.KindInvalid, "", err).
			WithHint("name the key by its fingerprint, which turn key ls prints")
	}
	l, err := r.lock(ctx)
	if err != nil {
		return "", err
	}
	defer l.Release()
	own, err := r.Own()
	if err != nil {
		return "", err
	}
	for role, p := range own {
		if p.ID() == id {
			return "", turnstone.Errorf("key.untrust", turnstone.KindInvalid, "key "+id,
				"signs the turns of this state directory").
				WithHint("replace it with turn key rotate " + string(role))
		}
	}
	found := false
	err = r.rewrite(func(line string, all []Entry) (string, bool) {
		theirs := len(all) > 0 && all[0].Key.ID() == id
		found = found || theirs
		return line, !theirs
	})
	if err == nil && !found {
		err = turnstone.Errorf("key.untrust", turnstone.KindNotFound, "key "+id, "is not trusted").
			WithHint("list the keys with turn key ls")
	}
	return id, err
}

// retire sets the end of the time for which a key of a role is trusted.
func (r Ring) retire(p Public, role Role, until time.Time) error {
	return r.rewrite(func(line string, all []Entry) (string, bool) {
		if len(all) == 0 || !all[0].Key.Equal(p) || !inNamespace(all[0].Namespaces) {
			return line, true
		}
		var lines []string // one for each principal
		for _, e := range all {
			if e.Role == role && e.Before.IsZero() {
				e.Before = until
			}
			lines = append(lines, e.Line())
		}
		return strings.Join(lines, "\n"), true
	})
}

// rewrite replaces each line of the list of trusted keys by what f returns, or removes the line if f
// does not keep it. A line that cannot be parsed, or a comment, has no entries.
func (r Ring) rewrite(f func(line string, all []Entry) (replaced string, keep bool)) error {
	b, err := os.ReadFile(r.Trusted())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return turnstone.NewError("key.trust", turnstone.KindUnavailable, r.Trusted(), err)
	}
	var text strings.Builder
	changed := false
	for line := range strings.Lines(string(b)) {
		line = strings.TrimRight(line, "\n")
		all, err := parseSigner(strings.TrimSpace(line))
		if err != nil {
			all = nil
		}
		now, keep := f(line, all)
		changed = changed || now != line || !keep
		if keep {
			text.WriteString(now + "\n")
		}
	}
	if !changed {
		return nil
	}
	if err := filestamp.WriteFile(r.Trusted(), []byte(text.String()), 0o600); err != nil {
		return turnstone.NewError("key.trust", turnstone.KindUnavailable, r.Trusted(), err)
	}
	return nil
}

// Revoke adds a key to the list of revoked keys: a fingerprint, or TYPE BASE64.
func (r Ring) Revoke(ctx context.Context, name string) (id string, err error) {
	if id, err = parseID(strings.TrimSpace(name)); err != nil {
		return "", turnstone.NewError("key.revoke", turnstone.KindInvalid, "", err).
			WithHint("name the key by its fingerprint, which turn key ls prints")
	}
	l, err := r.lock(ctx)
	if err != nil {
		return "", err
	}
	defer l.Release()
	t, err := r.List()
	if err != nil || t.Revoked(id) {
		return id, err
	}
	stamp := time.Now().UTC().Format(time.RFC3339)
	return id, appendLine(r.revokedAt(), id+" revoked "+stamp)
}

// List returns the trusted and revoked keys. A list that does not exist is empty.
func (r Ring) List() (*Trust, error) {
	t := &Trust{}
	err := t.ReadTrust(r.Trusted())
	if err == nil || turnstone.KindOf(err) == turnstone.KindNotFound {
		err = t.ReadRevoked(r.revokedAt())
	}
	if turnstone.KindOf(err) == turnstone.KindNotFound {
		err = nil
	}
	return t, err
}

// InUse reports that a key of this state directory is revoked: what it signs would not verify.
func (r Ring) InUse(role Role, s *Signer) error {
	t := &Trust{}
	if err := t.ReadRevoked(r.revokedAt()); err != nil &&
		turnstone.KindOf(err) != turnstone.KindNotFound {
		return err
	}
	if t.Revoked(s.ID()) {
		return turnstone.Errorf("key.load", turnstone.KindInvalid,
			fmt.Sprintf("the %s's key %s", role, s.ID()), "is revoked").
			WithHint("turn key rotate " + string(role) + " makes a new one")
	}
	return nil
}

// Own returns the public keys of this state directory by role, as far as there are any.
func (r Ring) Own() (map[Role]Public, error) {
	own := map[Role]Public{}
	for _, role := range []Role{Node, Caller} {
		p, _, err := r.public(role)
		if err != nil {
			return nil, err
		}
		if p != nil {
			own[role] = *p
		}
	}
	return own, nil
}

// appendLine adds a line to a file, which it replaces as a whole.
func appendLine(path, line string) error {
	b, err := os.ReadFile(path)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		if len(b) > 0 && b[len(b)-1] != '\n' {
			b = append(b, '\n')
		}
		err = filestamp.WriteFile(path, append(b, line+"\n"...), 0o600)
	}
	if err != nil {
		return turnstone.Classify("key.trust", turnstone.KindUnavailable, path, err, "")
	}
	return nil
}
