package auth

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	jose "github.com/go-jose/go-jose/v4"

	"turnstone.dev/turnstone"
)

// Lifetimes of own tokens.
const (
	MinTTL = time.Second
	MaxTTL = 366 * 24 * time.Hour
)

// keptAfter is how long what has ended is still remembered, for clocks that are set back.
const keptAfter = time.Hour

// ownType is the type in the header of own tokens (RFC 9068).
const ownType = "at+jwt"

// maxOwnKeys bounds the keys of an issuer that verifiers know at one time.
const maxOwnKeys = 32

// An Issuer makes the server's own tokens. Only the controller has one. It may be used
// concurrently. Formatting and logging it reveals no key.
type Issuer struct {
	name  string
	path  string
	clock *Clock

	mu      sync.Mutex
	private ed25519.PrivateKey
	id      string
	old     []OwnKey
}

// An OwnKey is a public key of the server's own issuer.
type OwnKey struct {
	ID  string            `json:"kid"` // thumbprint of the key (RFC 7638)
	Key ed25519.PublicKey `json:"x"`
	// Until is the end of the tokens that the key signed; zero: the key is in use.
	Until time.Time `json:"until,omitzero"`
}

// OpenIssuer opens the issuer of the server called name, whose private key is in the file at path,
// such as keys/token in the state directory. The key is made on first use, with mode 0600. Public
// keys of earlier private keys are in path+".old". The error is of kind Invalid if another user can
// read the files or if they are damaged.
func OpenIssuer(_ context.Context, name, path string, clock *Clock) (*Issuer, error) {
	if err := checkServer(name); err != nil {
		return nil, err
	}
	i := &Issuer{name: name, path: path, clock: clock}
	err := i.load()
	if turnstone.KindOf(err) != turnstone.KindNotFound {
		return i, err
	}
	if err := i.first(); err != nil {
		return nil, turnstone.Classify("token.key", turnstone.KindUnavailable, path, err,
			"free some disk space, such as with turn gc")
	}
	return i, i.load()
}

// checkServer reports a name that cannot be the audience of tokens.
func checkServer(name string) error {
	raw, err := json.Marshal(name)
	if err == nil {
		_, err = text(raw, maxText)
	}
	if err != nil || strings.ContainsAny(name, " \t") {
		return turnstone.Errorf("auth.server", turnstone.KindInvalid, "the server's name",
			"%.80q cannot be the audience of tokens", name).
			WithHint("use the server's URL or host name")
	}
	return nil
}

// first makes the key unless another process does at the same time.
func (i *Issuer) first() error {
	if err := os.MkdirAll(filepath.Dir(i.path), 0o700); err != nil {
		return err
	}
	_, b, err := newKey()
	if err != nil {
		return err
	}
	err = writeOwn(i.path, b, os.Link) // fails if the file exists
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

func newKey() (ed25519.PrivateKey, []byte, error) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	b, err := encodePrivate(private)
	return private, b, err
}

// load reads the files.
func (i *Issuer) load() error {
	b, err := readOwn(i.path)
	if err != nil {
		return err
	}
	private, err := decodePrivate(b)
	if err != nil {
		return turnstone.NewError("token.key", turnstone.KindInvalid, i.path, err).
			WithHint("restore the file, or remove it to make a new key: tokens end with the old one")
	}
	old, err := readOld(i.path + ".old")
	if err != nil {
		return err
	}
	i.private, i.id = private, Thumbprint(private.Public().(ed25519.PublicKey))
	// A crash within a rotation leaves the key in use among the old ones.
	i.old = slices.DeleteFunc(old, func(k OwnKey) bool { return k.ID == i.id })
	return nil
}

func readOld(path string) ([]OwnKey, error) {
	b, err := readOwn(path)
	if turnstone.KindOf(err) == turnstone.KindNotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var list []OwnKey
	if err = json.Unmarshal(b, &list); err == nil {
		err = checkOwnKeys(list)
	}
	if err != nil {
		return nil, turnstone.Errorf("token.key", turnstone.KindInvalid, path,
			"is not a list of public keys").
			WithHint("restore the file, or remove it: tokens of earlier keys end then")
	}
	return list, nil
}

// checkOwnKeys reports keys whose ID is not their thumbprint, and too many keys.
func checkOwnKeys(list []OwnKey) error {
	if len(list) > maxOwnKeys {
		return fmt.Errorf("has %d keys; the limit is %d", len(list), maxOwnKeys)
	}
	for n, k := range list {
		if len(k.Key) != ed25519.PublicKeySize || k.ID != Thumbprint(k.Key) {
			return fmt.Errorf("the key %d is malformed", n+1)
		}
	}
	return nil
}

// Thumbprint returns the key's thumbprint (RFC 7638 with the members of RFC 8037), in base64url.
func Thumbprint(k ed25519.PublicKey) string {
	sum := sha256.Sum256([]byte(`{"crv":"Ed25519","kty":"OKP","x":"` +
		base64.RawURLEncoding.EncodeToString(k) + `"}`))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// Issued is a new token and what is recorded about it.
type Issued struct {
	Token   Token     `json:"token"`
	ID      string    `json:"id"`  // jti
	Key     string    `json:"key"` // ID of the key that signed it
	Expires time.Time `json:"expires"`
}

// Issue signs a token. The error is of kind Invalid if no verifier would accept the claims.
func (i *Issuer) Issue(_ context.Context, c Claims) (Issued, error) {
	if err := c.check(); err != nil {
		return Issued{}, err
	}
	now := i.clock.Now()
	expires := c.Expires.Truncate(time.Second)
	// both in whole seconds: a lifetime of MinTTL is not too short because time has passed
	if ttl := expires.Sub(now.Truncate(time.Second)); ttl < MinTTL || ttl > MaxTTL {
		return Issued{}, turnstone.Errorf("token.issue", turnstone.KindInvalid, "the token",
			"would end in %s; %s to %d days are allowed", ttl.Round(time.Second), MinTTL,
			MaxTTL/(24*time.Hour))
	}
	parents, err := encodeAncestors(c.Ancestors)
	if err != nil {
		return Issued{}, err
	}
	id := "tk_" + strings.ToLower(rand.Text())
	if c.First != "" {
		id = c.First + successorMark + strings.ToLower(rand.Text())
	}
	payload, err := json.Marshal(encodedClaims{Issuer: i.name, Audience: i.name,
		Subject: c.Subject, ID: id, Issued: now.Unix(), Expires: expires.Unix(),
		Tenant: c.Tenant, Scope: joined(c.Scopes), Sessions: c.Sessions, Templates: c.Templates,
		Sandbox: c.Sandbox, Ancestors: parents})
	if err != nil {
		return Issued{}, turnstone.NewError("token.issue", turnstone.KindInternal, "the token", err)
	}
	i.mu.Lock()
	private, kid := i.private, i.id
	i.mu.Unlock()
	token, err := sign(private, kid, payload)
	if err == nil && len(token) > MaxToken {
		err = turnstone.Errorf("token.issue", turnstone.KindInvalid, "the token",
			"would have %d bytes; the limit is %d", len(token), MaxToken).
			WithHint("use fewer or shorter patterns")
	}
	if err != nil {
		return Issued{}, err
	}
	return Issued{Token: Token(token), ID: id, Key: kid, Expires: expires}, nil
}

func joined(list []Scope) string {
	words := make([]string, len(list))
	for n, s := range list {
		words[n] = string(s)
	}
	return strings.Join(words, " ")
}

func sign(private ed25519.PrivateKey, kid string, payload []byte) (string, error) {
	fail := func() (string, error) { // without the library's words, which may quote its input
		return "", turnstone.Errorf("token.issue", turnstone.KindInternal, "the token",
			"cannot be signed")
	}
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.EdDSA,
		Key: jose.JSONWebKey{Key: private, KeyID: kid}},
		(&jose.SignerOptions{}).WithType(ownType))
	if err != nil {
		return fail()
	}
	jws, err := s.Sign(payload)
	if err != nil {
		return fail()
	}
	token, err := jws.CompactSerialize()
	if err != nil {
		return fail()
	}
	return token, nil
}

// Keys returns the public keys whose tokens are valid, the one in use first.
func (i *Issuer) Keys() []OwnKey {
	i.mu.Lock()
	defer i.mu.Unlock()
	all := []OwnKey{{ID: i.id, Key: i.private.Public().(ed25519.PublicKey)}}
	for _, k := range i.old {
		if i.clock.Now().Before(k.Until.Add(keptAfter)) {
			all = append(all, k)
		}
	}
	return all
}

// Rotate replaces the key. Tokens of the old key stay valid until the time until, which is when the
// last of them ends; zero: MaxTTL from now. announce is called with the new list of public keys
// before a token is signed with the new key, and before anything is written; if it fails, nothing
// changes. Rotate waits for other processes that do the same.
func (i *Issuer) Rotate(_ context.Context, until time.Time,
	announce func([]OwnKey) error) error {
	release, err := lockOwn(i.path)
	if err != nil {
		return turnstone.NewError("token.rotate", turnstone.KindUnavailable, i.path, err)
	}
	defer release()
	i.mu.Lock()
	err = i.load() // another process may have rotated it
	was := OwnKey{ID: i.id, Key: i.private.Public().(ed25519.PublicKey), Until: until}
	old := slices.Clone(i.old)
	i.mu.Unlock()
	if err != nil {
		return err
	}
	now := i.clock.Now()
	if until.IsZero() {
		was.Until = now.Add(MaxTTL)
	}
	was.Until = was.Until.UTC().Truncate(time.Second)
	old = slices.DeleteFunc(old, func(k OwnKey) bool {
		return !now.Before(k.Until.Add(keptAfter))
	})
	if len(old)+2 > maxOwnKeys {
		return turnstone.Errorf("token.rotate", turnstone.KindExhausted, i.path,
			"there are %d earlier keys whose tokens have not ended", len(old)).
			WithHint("revoke an earlier key, or rotate less often")
	}
	old = append([]OwnKey{was}, old...)
	private, b, err := newKey()
	if err != nil {
		return turnstone.NewError("token.rotate", turnstone.KindInternal, "", err)
	}
	next := OwnKey{ID: Thumbprint(private.Public().(ed25519.PublicKey)),
		Key: private.Public().(ed25519.PublicKey)}
	if announce != nil {
		if err := announce(append([]OwnKey{next}, old...)); err != nil {
			return err
		}
	}
	if err := i.write(old, b); err != nil {
		return turnstone.Classify("token.rotate", turnstone.KindUnavailable, i.path, err,
			"free some disk space, such as with turn gc")
	}
	i.mu.Lock()
	i.private, i.id, i.old = private, next.ID, old
	i.mu.Unlock()
	return nil
}

// write writes the old keys first: a crash between the two leaves the old key in use.
func (i *Issuer) write(old []OwnKey, private []byte) error {
	b, err := json.Marshal(old)
	if err == nil {
		err = writeOwn(i.path+".old", append(b, '\n'), os.Rename)
	}
	if err == nil {
		err = writeOwn(i.path, private, os.Rename)
	}
	return err
}

// String returns the name of the issuer.
func (i *Issuer) String() string { return "issuer of " + i.name }

// Format writes the name of the issuer, whatever the verb.
func (i *Issuer) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, i.String()) }

// LogValue implements slog.LogValuer.
func (i *Issuer) LogValue() slog.Value { return slog.StringValue(i.String()) }
