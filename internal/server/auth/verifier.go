package auth

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"turnstone.dev/turnstone"
)

// Bounds and defaults of a verifier.
const (
	DefaultLeeway = 30 * time.Second
	MaxLeeway     = 2 * time.Minute
	DefaultStale  = time.Minute
)

// VerifierConfig configures a TokenVerifier.
type VerifierConfig struct {
	// Name is the server's: the audience of all tokens, and the issuer of its own.
	Name  string
	Clock *Clock // nil: SystemClock
	// Leeway is how much the clocks of issuers may differ from this one; 0: DefaultLeeway. Own tokens
	// may begin as much early, because the controller's clock may be ahead, and end on time.
	Leeway time.Duration
	// Stale is the age of the last bulletin after which every token is refused; 0: DefaultStale.
	Stale   time.Duration
	Issuers []OIDC
	// Transport fetches the keys of issuers; nil: a transport of its own, with the host's proxies.
	Transport http.RoundTripper
	Log       *slog.Logger // failures of issuers, and revocations that are gone; nil: none
}

// A TokenVerifier verifies own tokens with the keys of the last bulletin, and tokens of OpenID
// Connect issuers with theirs. It may be used concurrently.
type TokenVerifier struct {
	config VerifierConfig
	clock  *Clock
	oidc   map[string]*remote
	end    context.CancelFunc
	tasks  sync.WaitGroup

	mu    sync.RWMutex
	board *board // nil: there was no bulletin yet
}

// NewVerifier returns a verifier. It accepts no token before its first bulletin. The error is of
// kind Invalid. Its owner calls Close.
func NewVerifier(c VerifierConfig) (*TokenVerifier, error) {
	if err := checkServer(c.Name); err != nil {
		return nil, err
	}
	if c.Clock == nil {
		c.Clock = SystemClock()
	}
	if c.Leeway == 0 {
		c.Leeway = DefaultLeeway
	}
	if c.Stale == 0 {
		c.Stale = DefaultStale
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	bad := func(what, format string, args ...any) (*TokenVerifier, error) {
		return nil, turnstone.Errorf("auth.verifier", turnstone.KindInvalid, what, format, args...)
	}
	if c.Leeway < 0 || c.Leeway > MaxLeeway {
		return bad("leeway", "%s is not between 0 and %s", c.Leeway, MaxLeeway)
	}
	if c.Stale < time.Second {
		return bad("the limit of the bulletin's age", "%s is less than a second", c.Stale)
	}
	ctx, end := context.WithCancel(context.Background())
	v := &TokenVerifier{config: c, clock: c.Clock, oidc: map[string]*remote{}, end: end}
	for _, o := range c.Issuers {
		r, err := newRemote(ctx, o, v)
		if err == nil && (v.oidc[o.Issuer] != nil || o.Issuer == c.Name) {
			err = turnstone.Errorf("auth.issuer", turnstone.KindInvalid, o.Issuer, "is there twice")
		}
		if err != nil {
			end()
			return nil, err
		}
		v.oidc[o.Issuer] = r
	}
	return v, nil
}

// Close ends what the verifier does in the background.
func (v *TokenVerifier) Close() error {
	v.end()
	v.tasks.Wait()
	for _, r := range v.oidc {
		r.client.CloseIdleConnections()
	}
	return nil
}

// Update takes a bulletin of the controller. The error is of kind Integrity if the number is lower
// than before: it would take a revocation back.
func (v *TokenVerifier) Update(b Bulletin) error {
	if err := b.check(); err != nil {
		return turnstone.NewError("auth.bulletin", turnstone.KindIntegrity, "bulletin", err)
	}
	next := b.board(v.clock.now())
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.board != nil && b.Number < v.board.number {
		return turnstone.Errorf("auth.bulletin", turnstone.KindIntegrity, "bulletin",
			"has the number %d after %d", b.Number, v.board.number).
			WithHint("restart the gateway if the controller's database was restored from a backup, and its clock set back")
	}
	if v.board != nil {
		if n := next.lacks(v.board, next.got.wall); n > 0 {
			v.config.Log.Warn("revocations are gone from the controller's list, as when its database was restored from a backup",
				"revocations", n, "hint", "revoke again the tokens and keys that were revoked since the backup")
		}
	}
	v.board = next
	return nil
}

// Confirm takes the word of the controller that the last bulletin is still the newest one. The
// error is of kind Integrity if the last bulletin has another number.
func (v *TokenVerifier) Confirm(number uint64) error {
	now := v.clock.now()
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.board == nil || v.board.number != number {
		return turnstone.Errorf("auth.bulletin", turnstone.KindIntegrity, "bulletin",
			"number %d is confirmed, which did not come", number)
	}
	next := *v.board
	next.got = now
	v.board = &next
	return nil
}

// current returns the last bulletin unless it is too old.
func (v *TokenVerifier) current() (*board, error) {
	v.mu.RLock()
	b := v.board
	v.mu.RUnlock()
	if b == nil {
		return nil, refuse("auth.verify", Stale,
			"cannot be verified: the controller has not sent its keys yet")
	}
	if age := v.clock.since(b.got); age > v.config.Stale {
		return nil, refuse("auth.verify", Stale,
			"cannot be verified: the list of revocations is %s old; the limit is %s",
			age.Round(time.Second), v.config.Stale)
	}
	return b, nil
}

// Ready reports why every token would be refused now: no bulletin has come, or the last one is too
// old. The error has the Reason Stale.
func (v *TokenVerifier) Ready() error {
	_, err := v.current()
	return err
}

// Verify implements Verifier. It waits for the network only if a token names a key of an OpenID
// Connect issuer that is not known.
func (v *TokenVerifier) Verify(ctx context.Context, token string) (Principal, error) {
	p, err := parse(token)
	if err != nil {
		return Principal{}, err
	}
	if p.issuer == v.config.Name {
		return v.own(p)
	}
	r := v.oidc[p.issuer]
	if r == nil {
		return Principal{}, refuse("auth.verify", WrongIssuer,
			"is of the issuer %.100q, which this server does not know", p.issuer)
	}
	return v.foreign(ctx, p, r)
}

// Still reports why a principal of Verify would be refused now: its token has expired or is revoked,
// its key has ended, or the last bulletin is too old. What a token opened for a long time, such as
// a channel, asks again and again.
func (v *TokenVerifier) Still(p Principal) error {
	if p.Issuer == "" {
		return nil // the operator has no token
	}
	b, err := v.current()
	if err != nil {
		return err
	}
	if !v.clock.Latest().Add(-v.leeway(p.Issuer)).Before(p.Expires) {
		return refuse("auth.verify", Expired, "expired at %s", when(p.Expires))
	}
	if err := b.ends(p.Issuer, p.TokenID, p.Key); err != nil {
		return err
	}
	if err := b.descends(p.Ancestors); err != nil {
		return err
	}
	if p.Issuer == v.config.Name && !v.valid(b.keys[p.Key]) {
		return refuse("auth.verify", UnknownKey, "is of a key that its issuer no longer has")
	}
	return nil
}

// leeway is by how much a token may be late. The server's own tokens end on time: their time is that
// of the controller, to whose list of revocations the verifier listens.
func (v *TokenVerifier) leeway(issuer string) time.Duration {
	if issuer == v.config.Name {
		return 0
	}
	return v.config.Leeway
}

// valid reports whether an own key is there, and its tokens have not ended.
func (v *TokenVerifier) valid(k OwnKey) bool {
	return k.Key != nil &&
		(k.Until.IsZero() || v.clock.Latest().Before(k.Until))
}

// own verifies a token of the server's own issuer.
func (v *TokenVerifier) own(p *parsed) (Principal, error) {
	b, err := v.current()
	if err != nil {
		return Principal{}, err
	}
	if p.alg != "EdDSA" {
		return Principal{}, refuse("auth.verify", Algorithm,
			"is signed with %s; the server signs with EdDSA", p.alg)
	}
	k := b.keys[p.kid]
	if !v.valid(k) {
		return Principal{}, v.unknown(b, p)
	}
	if err := p.signed(verifyingKey{key: k.Key}); err != nil {
		return Principal{}, err
	}
	if p.typ != ownType {
		return Principal{}, refuse("auth.verify", Malformed, "is not of the type %s", ownType)
	}
	if p.claims["jti"] == nil || p.claims["iat"] == nil {
		return Principal{}, refuse("auth.verify", BadClaims, "jti or iat is missing")
	}
	c, id, err := v.claims(p, b, []string{v.config.Name}, MaxTTL)
	if err != nil {
		return Principal{}, err
	}
	return c.principal(p, id), nil
}

// unknown is the error about a key that is not there: a revoked key is named as such.
func (v *TokenVerifier) unknown(b *board, p *parsed) error {
	if b.has(Revocation{Issuer: p.issuer, Key: p.kid}) {
		return refuse("auth.verify", Revoked, "is of a key that is revoked")
	}
	return refuse("auth.verify", UnknownKey, "is of the key %.60q, which its issuer does not have",
		p.kid)
}

// claims checks the claims of a token whose signature is verified.
func (v *TokenVerifier) claims(p *parsed, b *board, audiences []string, longest time.Duration) (
	Claims, string, error) {
	expires, err := p.times(span{now: v.clock.Now(), latest: v.clock.Latest(),
		leeway: v.config.Leeway, late: v.leeway(p.issuer), longest: longest})
	if err != nil {
		return Claims{}, "", err
	}
	if err := p.audience(audiences); err != nil {
		return Claims{}, "", err
	}
	id, err := p.id()
	if err != nil {
		return Claims{}, "", err
	}
	if err := b.ends(p.issuer, id, p.kid); err != nil {
		return Claims{}, "", err
	}
	c, err := p.grants()
	c.Expires = expires
	if err == nil && p.issuer != v.config.Name {
		c.Ancestors = nil // the claim is ours
	}
	if err == nil {
		err = b.descends(c.Ancestors)
	}
	if err == nil && c.Tenant == "" && p.issuer == v.config.Name {
		err = refuse("auth.verify", BadClaims, "%s is missing", claimTenant)
	}
	return c, id, err
}

func (c Claims) principal(p *parsed, id string) Principal {
	return Principal{Issuer: p.issuer, Tenant: c.Tenant, Subject: c.Subject, TokenID: id,
		Key: p.kid, Expires: c.Expires, Scopes: c.Scopes, Sessions: c.Sessions, Templates: c.Templates,
		Sandbox: c.Sandbox, Ancestors: c.Ancestors}
}

// foreign verifies a token of an OpenID Connect issuer.
func (v *TokenVerifier) foreign(ctx context.Context, p *parsed, r *remote) (Principal, error) {
	b, err := v.current()
	if err != nil {
		return Principal{}, err
	}
	if !slices.Contains(r.config.Algorithms, p.alg) {
		return Principal{}, refuse("auth.verify", Algorithm,
			"is signed with %s, which its issuer may not use", p.alg)
	}
	if !slices.Contains(remoteTypes, p.typ) {
		return Principal{}, refuse("auth.verify", Malformed, "is of the type %q", p.typ)
	}
	k, err := r.key(ctx, p.kid)
	if err != nil {
		return Principal{}, err
	}
	if k == nil {
		return Principal{}, v.unknown(b, p)
	}
	if err := p.signed(*k); err != nil {
		return Principal{}, err
	}
	c, id, err := v.claims(p, b, r.config.Audiences, r.config.MaxTTL)
	if err != nil {
		return Principal{}, err
	}
	if err := r.config.bound(p, &c); err != nil {
		return Principal{}, err
	}
	return c.principal(p, id), nil
}

// String describes the verifier without its keys.
func (v *TokenVerifier) String() string {
	return fmt.Sprintf("verifier of %s with %d issuers", v.config.Name, len(v.oidc))
}
