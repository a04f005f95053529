package executor

import (
	"context"
	"io"
	"slices"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/hostca"
	"turnstone.dev/turnstone/internal/network"
	"turnstone.dev/turnstone/wire"
)

// needsCA tells whether the guest has to trust an authority of ours.
func (n *networkPlan) needsCA() bool {
	return n.spec.Open || n.player != nil && n.playerOpens() ||
		slices.ContainsFunc(n.spec.Headers, func(h network.SecretHeader) bool { return h.Scheme == "https" })
}

// caPath is where the guest finds the certificates that it is to trust, when they are others
// than those of its image. It lies on no disk, and so in no state.
const caPath = "/run/turnstone/ca-certificates.crt"

// caBundle is where Debian has the certificates that it trusts.
const caBundle = "/etc/ssl/certs/ca-certificates.crt"

// caVariables tell programs of caPath: OpenSSL's and Go's, curl, Python's requests, Node, git.
var caVariables = []string{"SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO"}

// hostCAFile remembers which authorities the host has of its own.
const hostCAFile = "host-ca.json"

// hostAuthorities are the certificates that the host trusts beyond the public ones.
func (x *Host) hostAuthorities() hostca.Host {
	h := hostca.Host{}
	if dir, err := x.home.MkdirAll("cache"); err == nil { // else each start looks for them
		h.Cache = dir + "/" + hostCAFile
	}
	return h
}

// trusted decides what the guest of n is to trust beside its image's certificates, and returns
// the variables with which programs find it. env is what the sandbox's would be without.
func (x *Host) trusted(n *networkPlan, env []string) ([]string, error) {
	if !n.spec.NoHostCA && n.player == nil { // a replay reaches nobody
		n.hostCA = x.hostAuthorities().Own()
	}
	return n.trust(env)
}

// trust makes the sandbox's own authority, where one is needed, and returns the variables.
func (n *networkPlan) trust(env []string) ([]string, error) {
	if !n.needsCA() && len(n.hostCA) == 0 {
		return nil, nil
	}
	n.outer, n.bundle = map[string]string{}, caBundle
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		if slices.Contains(caVariables, name) && value != caPath {
			n.outer[name] = value
		}
	}
	if !n.needsCA() {
		return n.variables(n.outer), nil // who names certificates of its own means them
	}
	var err error
	if n.ca, err = network.NewCA(); err != nil {
		return nil, err
	}
	if b := n.outer["SSL_CERT_FILE"]; b != "" {
		n.bundle = b
	}
	return n.variables(nil), nil
}

// variables are those that name caPath, without those in but.
func (n *networkPlan) variables(but map[string]string) (env []string) {
	for _, name := range caVariables {
		if _, ok := but[name]; !ok {
			env = append(env, name+"="+caPath)
		}
	}
	return env
}

// giveWay takes out of env the variables that name the host's authorities where image, a
// template's environment, names certificates of its own.
func (n *networkPlan) giveWay(env, image []string) []string {
	if n.ca != nil || len(n.hostCA) == 0 {
		return env
	}
	return slices.DeleteFunc(slices.Clone(env), func(kv string) bool {
		name, value, _ := strings.Cut(kv, "=")
		return value == caPath && slices.Contains(caVariables, name) &&
			slices.ContainsFunc(image, func(kv string) bool { return strings.HasPrefix(kv, name+"=") })
	})
}

// inherited is env as later turns get it: without what is of use in this sandbox only.
func (n *networkPlan) inherited(env []string) []string {
	var kept []string
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		if value != caPath || !slices.Contains(caVariables, name) {
			kept = append(kept, kv)
		} else if was, ok := n.outer[name]; ok {
			kept = append(kept, name+"="+was)
		}
	}
	return kept
}

// maxBundle bounds the certificates that a guest trusts, in bytes.
const maxBundle = 4 << 20

// trust puts the certificates that the guest is to trust where caPath says: its own, those that
// its host has beyond the public ones, and that of the authority of its network.
func (s *Sandbox) trust(ctx context.Context, p *networkPlan) error {
	if !p.trusts() {
		return nil
	}
	return s.writeTrusted(ctx, p)
}

// trusts tells whether the guest is to trust more than its image says.
func (n *networkPlan) trusts() bool { return n.ca != nil || len(n.hostCA) > 0 }

// distrust removes what a restored machine trusted where it was saved, on this host or on
// another one, unless trust will replace it. The machine's variables still name the file.
func (s *Sandbox) distrust(ctx context.Context, p *networkPlan) error {
	if p.trusts() {
		return nil
	}
	if _, err := s.read(ctx, caPath, 1); turnstone.KindOf(err) == turnstone.KindNotFound {
		return nil
	}
	return s.writeTrusted(ctx, &networkPlan{bundle: caBundle})
}

// writeTrusted writes the file at caPath.
func (s *Sandbox) writeTrusted(ctx context.Context, p *networkPlan) error {
	bundle, err := s.read(ctx, p.bundle, maxBundle)
	if err != nil && turnstone.KindOf(err) != turnstone.KindNotFound { // a small image has none
		return s.causeOf(err)
	}
	if n := len(bundle); n > 0 && bundle[n-1] != '\n' {
		bundle = append(bundle, '\n')
	}
	bundle = append(bundle, hostca.PEM(p.hostCA)...)
	if p.ca != nil {
		bundle = append(bundle, p.ca.PEM()...)
	}
	return s.put(ctx, caPath, bundle)
}

// read returns at most so many bytes of a file of the guest. They come as they are, and not as
// text in an answer, which takes several times as long.
func (s *Sandbox) read(ctx context.Context, path string, most int64) ([]byte, error) {
	c := s.Client()
	id := c.NewStream()
	r, err := c.Receiver(id)
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }()
	defer context.AfterFunc(ctx, func() { _ = r.Close() })()
	answer := make(chan error, 1)
	go func() {
		_, err := c.FileSystemRead(ctx, &wire.FileSystemReadParams{Path: path, Length: most, Stream: id})
		if err != nil {
			_ = r.Close()
		}
		answer <- err
	}()
	b, readErr := io.ReadAll(io.LimitReader(r, most))
	_ = r.Close()
	if err := <-answer; err != nil {
		return nil, err
	}
	return b, readErr
}
