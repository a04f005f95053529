// Package transit wraps the keys of domains with a key of Vault's transit secrets engine
// (https://developer.hashicorp.com/vault/api-docs/secret/transit), which OpenBao has too. The
// wrapping key never leaves Vault. The package speaks the documented HTTP API itself: the official
// client reads its settings from the environment, follows redirects with the token, and bounds no
// answer.
//
// A domain's ID is sent as the context of each request, so that Vault derives a key for each domain
// if the wrapping key was made with derived=true. Vault ignores the context otherwise.
package transit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/keyring"
)

// Options are the settings of a Wrapper. A zero number selects its default.
type Options struct {
	Address   string // such as "https://vault.example.org:8200"; http on this machine alone
	CA        string // PEM file of authorities; empty: the system's
	Namespace string // of Vault Enterprise or OpenBao; empty: the root namespace
	Mount     string // default: "transit"
	Key       string // name of the wrapping key
	// Token returns Vault's token for a request.
	Token func() (string, error)

	Timeout  time.Duration // of one operation with all its tries; default: 5 s
	Pause    time.Duration // for which a Vault that is away is not asked; default: 5 s
	Requests int           // at one time; default: 16
}

const (
	defaultMount    = "transit"
	defaultTimeout  = 5 * time.Second
	defaultPause    = 5 * time.Second
	defaultRequests = 16
	// failures in a row after which Vault is not asked for a while
	failures = 3
	// tries of one operation
	tries = 3
)

// A Wrapper is a wrapping key in Vault. It is a keyring.Wrapper, Rotator and Rewrapper, and is safe
// for concurrent use. While Vault is away, operations fail at once, except one from time to time
// that tries.
type Wrapper struct {
	o       Options
	name    string // of the wrapping key, without a version
	client  *http.Client
	slots   chan struct{}
	breaker *gobreaker.CircuitBreaker[*answer]
	last    atomic.Pointer[turnstone.Error] // why Vault is away
}

// New returns a Wrapper. It does not connect. The error is of kind Invalid.
func New(o Options) (*Wrapper, error) {
	if o.Mount == "" {
		o.Mount = defaultMount
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	if o.Pause == 0 {
		o.Pause = defaultPause
	}
	if o.Requests == 0 {
		o.Requests = defaultRequests
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	w := &Wrapper{o: o, name: o.Mount + "/" + o.Key, slots: make(chan struct{}, o.Requests)}
	if o.Namespace != "" {
		w.name = o.Namespace + ":" + w.name
	}
	var err error
	if w.client, err = newClient(o); err != nil {
		return nil, err
	}
	w.breaker = gobreaker.NewCircuitBreaker[*answer](gobreaker.Settings{
		Timeout:      o.Pause,
		ReadyToTrip:  func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= failures },
		IsSuccessful: func(err error) bool { return !isAway(err) },
		IsExcluded:   func(err error) bool { return turnstone.KindOf(err) == turnstone.KindCanceled },
	})
	return w, nil
}

// check reports malformed options.
func (o *Options) check() error {
	fail := func(setting, why, hint string) error {
		return turnstone.Errorf("keyring.vault", turnstone.KindInvalid, setting, "%s", why).
			WithHint(hint)
	}
	u, err := url.Parse(o.Address)
	switch {
	case err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" ||
		u.Path != "" && u.Path != "/":
		// not quoted: it may have a password
		return fail("vault.address", "is not the address of a server",
			"write such as https://vault.example.org:8200")
	case u.Scheme != "https" && (u.Scheme != "http" || !loopback(u.Hostname())):
		return fail("vault.address", "is not https, so others could read keys",
			"write https://; http is for an address of this machine")
	case !name(o.Key):
		return fail("vault.key", "is not the name of a key",
			"name the key of the transit engine with letters, digits, dots, underscores and hyphens")
	}
	for _, part := range strings.Split(o.Mount, "/") {
		if !name(part) {
			return fail("vault.mount", "is not a path", "write such as transit")
		}
	}
	if o.Namespace != "" {
		for _, part := range strings.Split(strings.TrimSuffix(o.Namespace, "/"), "/") {
			if !name(part) {
				return fail("vault.namespace", "is not a namespace", "write such as team-a")
			}
		}
	}
	if o.Token == nil {
		return fail("vault.token", "is missing", "name the file with Vault's token")
	}
	o.Address = u.Scheme + "://" + u.Host
	return nil
}

// name reports whether a part of a path can have the name.
func name(s string) bool {
	const ok = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
	return s != "" && len(s) <= 100 && strings.Trim(s, ok) == "" && strings.Trim(s, ".") != ""
}

func loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// String names the wrapping key and its Vault.
func (w *Wrapper) String() string { return w.name + " of " + w.subject() }

// Format implements fmt.Formatter.
func (w *Wrapper) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(w.String())) }

// subject names the Vault in errors.
func (w *Wrapper) subject() string { return "Vault " + w.o.Address }

// Close closes connections that nobody uses. Operations open new ones.
func (w *Wrapper) Close() { w.client.CloseIdleConnections() }

// wrapping returns the wrapping of a ciphertext, which begins with "vault:vN:".
func (w *Wrapper) wrapping(ciphertext string) (keyring.Wrapping, error) {
	rest, ok := strings.CutPrefix(ciphertext, "vault:v")
	digits, body, ok2 := strings.Cut(rest, ":")
	version, err := strconv.Atoi(digits)
	if !ok || !ok2 || err != nil || version < 1 || body == "" || len(ciphertext) > maxCiphertext {
		return keyring.Wrapping{}, w.garbage()
	}
	return keyring.Wrapping{Name: fmt.Sprintf("%s#%d", w.name, version),
		Data: []byte(ciphertext)}, nil
}

// maxCiphertext bounds a ciphertext in bytes: that of a key has about 100.
const maxCiphertext = 4 << 10

// Wrap implements keyring.Wrapper.
func (w *Wrapper) Wrap(ctx context.Context, id keyring.ID, s keyring.Secret) (keyring.Wrapping,
	error) {
	a, err := w.do(ctx, "encrypt", &request{Plaintext: s, Context: id[:]})
	if err != nil {
		return keyring.Wrapping{}, err
	}
	return w.wrapping(a.Ciphertext)
}

// Unwrap implements keyring.Wrapper.
func (w *Wrapper) Unwrap(ctx context.Context, id keyring.ID, one keyring.Wrapping) (keyring.Secret,
	error) {
	if !bytes.HasPrefix(one.Data, []byte("vault:v")) {
		return nil, w.damaged(one)
	}
	a, err := w.do(ctx, "decrypt", &request{Ciphertext: string(one.Data), Context: id[:]})
	if err != nil {
		return nil, w.explain(one, err)
	}
	if len(a.Plaintext) == 0 {
		return nil, w.garbage()
	}
	return keyring.Secret(a.Plaintext), nil
}

// Rewrap implements keyring.Rewrapper.
func (w *Wrapper) Rewrap(ctx context.Context, id keyring.ID, one keyring.Wrapping) (
	keyring.Wrapping, error) {
	if !bytes.HasPrefix(one.Data, []byte("vault:v")) {
		return keyring.Wrapping{}, w.damaged(one)
	}
	a, err := w.do(ctx, "rewrap", &request{Ciphertext: string(one.Data), Context: id[:]})
	if err != nil {
		return keyring.Wrapping{}, w.explain(one, err)
	}
	return w.wrapping(a.Ciphertext)
}

// Newest implements keyring.Wrapper. It encrypts a word that is no secret: the token needs no right
// to read the key's configuration.
func (w *Wrapper) Newest(ctx context.Context) (string, error) {
	one, err := w.Wrap(ctx, keyring.ID{}, keyring.Secret("turnstone"))
	return one.Name, err
}

// Rotate implements keyring.Rotator.
func (w *Wrapper) Rotate(ctx context.Context) (string, error) {
	if _, err := w.do(ctx, "rotate", &request{}); err != nil {
		return "", err
	}
	return w.Newest(ctx)
}

// errTimeout is the cause of the end of an operation's own time.
var errTimeout = errors.New("the time for Vault is over")

// do performs an operation, unless Vault is away.
func (w *Wrapper) do(ctx context.Context, op string, r *request) (*answer, error) {
	if err := w.slot(ctx); err != nil {
		return nil, err
	}
	defer func() { <-w.slots }()
	ctx, cancel := context.WithTimeoutCause(ctx, w.o.Timeout, errTimeout)
	defer cancel()
	a, err := w.breaker.Execute(func() (*answer, error) { return w.try(ctx, op, r) })
	var away *awayError
	switch {
	case errors.Is(err, gobreaker.ErrOpenState), errors.Is(err, gobreaker.ErrTooManyRequests):
		if last := w.last.Load(); last != nil {
			return nil, turnstone.Errorf(last.Op, last.Kind, last.Subject,
				"%w (it is not asked again for %s)", last.Err, w.o.Pause).WithHint(last.Hint)
		}
		return nil, w.fault(turnstone.KindUnavailable, "is away", hintAway)
	case errors.As(err, &away):
		return nil, away.err
	}
	return a, err
}

// slot waits until another request may begin. While Vault does not answer, the requests before this
// one open the circuit at the end of their time, and this one then fails at once.
func (w *Wrapper) slot(ctx context.Context) error {
	wait := time.NewTimer(2 * w.o.Timeout)
	defer wait.Stop()
	select {
	case w.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return w.given(ctx.Err())
	case <-wait.C:
		return w.fault(turnstone.KindTimeout, "has more requests than it answers in time",
			"look at the load of Vault, or raise vault.timeout")
	}
}

// given is the error of a caller that gave up.
func (w *Wrapper) given(err error) error {
	return turnstone.Classify("keyring.vault", turnstone.KindCanceled, w.subject(), err, "")
}

// newClient returns the HTTP client.
func newClient(o Options) (*http.Client, error) {
	roots, err := authorities(o.CA)
	if err != nil {
		return nil, err
	}
	return &http.Client{
		Transport: &http.Transport{
			TLSClientConfig:        roots,
			DialContext:            (&net.Dialer{Timeout: o.Timeout, KeepAlive: 30 * time.Second}).DialContext,
			TLSHandshakeTimeout:    o.Timeout,
			MaxConnsPerHost:        o.Requests,
			MaxIdleConnsPerHost:    o.Requests,
			IdleConnTimeout:        time.Minute,
			MaxResponseHeaderBytes: 16 << 10,
			DisableCompression:     true,
		},
		// the token is for this server alone
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, nil
}
