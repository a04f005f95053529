package oci

import (
	"context"
	"net/http"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
)

// Options of a Client. The zero value of each but Dir is a good choice.
type Options struct {
	Dir      string         // keeps what was downloaded; made where it is not there
	Keychain authn.Keychain // who the user is, per registry; nil: the Docker config's credentials
	Proxy    func(*http.Request) (string, error)
	Progress func(what string) // is told of what takes long, some times a second at most; nil: nobody is

	Stall   time.Duration // how long a registry may send next to nothing; 0: one minute
	Retries int           // of a request that failed for a reason that may pass; 0: 4; negative: none
	MaxKept int64         // bytes of downloads that are kept for other images; 0: 2 GiB
}

// A Client pulls images. Its methods are safe for concurrent use, also by several
// processes with one Dir.
type Client struct {
	opts Options
}

// New returns a client.
func New(opts Options) *Client { return &Client{opts: opts} }

var _ = context.Background
