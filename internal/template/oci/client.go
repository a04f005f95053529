package oci

import (
	"context"
	"errors"
	"net/http"
	"path/filepath"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"turnstone.dev/turnstone"
)

// Options of a Client. The zero value of each field except Dir is a good choice.
type Options struct {
	Dir string // the cache of downloads; created if missing
	// the user's credentials for each registry; nil: from the Docker config
	Keychain authn.Keychain
	Progress func(what string) // reports long operations, at most every two seconds; nil: none
	// Anonymous is for references that strangers name: the client sends no credentials, and uses
	// only TLS and public addresses.
	Anonymous bool

	Stall   time.Duration // time after which a nearly silent registry fails; 0: one minute
	Retries int           // of a request that failed for a temporary reason; 0: 4; negative: none
	// before the first retry, doubled for each further retry; 0: half a second
	Pause time.Duration
	// bytes of downloads that are kept for other images; 0: 2 GiB; negative: none
	MaxKept int64
}

// A Client pulls images. Its methods are safe for concurrent use, also by several
// processes with one Dir.
type Client struct {
	opts Options
	dir  string // Options.Dir, or the folder of anonymous clients in it
}

// anonymousDir is the folder of anonymous clients.
const anonymousDir = "anonymous"

// New returns a client.
func New(opts Options) *Client {
	dir := opts.Dir
	if opts.Keychain == nil {
		opts.Keychain = authn.DefaultKeychain
	}
	if opts.Anonymous {
		opts.Keychain = authn.NewMultiKeychain() // no credentials
		dir = filepath.Join(dir, anonymousDir)
	}
	if opts.Progress == nil {
		opts.Progress = func(string) {}
	}
	if opts.Stall == 0 {
		opts.Stall = time.Minute
	}
	if opts.Retries == 0 {
		opts.Retries = 4
	}
	if opts.Pause == 0 {
		opts.Pause = 500 * time.Millisecond
	}
	if opts.MaxKept == 0 {
		opts.MaxKept = MaxKept
	}
	return &Client{opts, dir}
}

// A session is a conversation with one registry about one repository.
type session struct {
	c     *Client
	ref   Reference
	http  *http.Client      // fetches blobs
	trans http.RoundTripper // authenticated
	close func()
}

// connect determines the registry's protocol, and logs in if the registry requires it. The caller
// closes the session.
func (c *Client) connect(ctx context.Context, ref Reference) (*session, error) {
	s, err := c.connectFor(ctx, ref, transport.PullScope)
	return s, ref.failed(err)
}

// connectFor is connect for an action of the registry's tokens. Its errors are as they came.
func (c *Client) connectFor(ctx context.Context, ref Reference, scope string) (*session, error) {
	g := newGuard(ref, c.opts.Stall, c.opts.Anonymous)
	s := &session{c: c, ref: ref, close: g.close}
	err := c.retry(ctx, func(ctx context.Context) (bool, error) {
		ctx, cancel := context.WithTimeoutCause(ctx, 2*c.opts.Stall, errStalled)
		defer cancel()
		auth, err := authn.Resolve(ctx, c.opts.Keychain, ref.repo)
		if err != nil {
			return false, turnstone.NewError("oci.login", turnstone.KindInvalid, ref.Registry(),
				clean(err)).
				WithHint("log in to the registry again with docker login, or check the Docker config")
		}
		s.trans, err = transport.NewWithContext(ctx, ref.repo.Registry, auth,
			g, []string{ref.repo.Scope(scope)})
		return false, stalled(ctx, err)
	})
	if err != nil {
		g.close()
		// A registry on this machine is tried with and without TLS: the error of its usual protocol
		// is more useful.
		if plain, ok := g.plain.Load().(error); ok && !errors.Is(err, errStalled) &&
			ctx.Err() == nil {
			err = plain
		}
		return nil, err
	}
	s.http = &http.Client{Transport: s.trans,
		CheckRedirect: func(_ *http.Request, via []*http.Request) error {
			if len(via) > maxRedirects {
				return errRedirects
			}
			return nil
		}}
	return s, nil
}

// digest returns the library's form of a reference, in s's repository.
func (s *session) digest(d turnstone.Digest) name.Reference { return s.ref.repo.Digest(string(d)) }

func (c *Client) path(elem ...string) string {
	return filepath.Join(append([]string{c.dir}, elem...)...)
}
