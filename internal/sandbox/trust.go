package sandbox

import (
	"context"
	"crypto/x509"
	"io"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/hostca"
	"turnstone.dev/turnstone/internal/network/proxy"
	"turnstone.dev/turnstone/wire"
)

// maxBundle bounds the certificates that a guest trusts, in bytes.
const maxBundle = 4 << 20

// Trust lists the certificate authorities that a guest trusts in addition to its image's: the
// host's non-public authorities, and its network's authority.
type Trust struct {
	CA     *proxy.CA           // nil: no TLS interception
	Host   []*x509.Certificate // of the host
	Bundle string              // path of the image's own file of trusted certificates
}

// Any reports whether the guest trusts more than its image's authorities.
func (t Trust) Any() bool { return t.CA != nil || len(t.Host) > 0 }

// Trust writes all trusted certificates to the file hostca.GuestPath, if there are more than the
// image's.
func (s *Sandbox) Trust(ctx context.Context, t Trust) error {
	if !t.Any() {
		return nil
	}
	return s.writeTrusted(ctx, t)
}

// Distrust removes the certificates that a restored machine trusted when it was saved, on this or
// another host, unless Trust will replace them. The machine's variables still name the file.
func (s *Sandbox) Distrust(ctx context.Context, t Trust) error {
	if t.Any() {
		return nil
	}
	if _, err := s.read(ctx, hostca.GuestPath, 1); turnstone.KindOf(err) == turnstone.KindNotFound {
		return nil
	}
	return s.writeTrusted(ctx, Trust{Bundle: hostca.GuestBundle})
}

// writeTrusted writes the file hostca.GuestPath.
func (s *Sandbox) writeTrusted(ctx context.Context, t Trust) error {
	bundle, err := s.read(ctx, t.Bundle, maxBundle)
	if err != nil && turnstone.KindOf(err) != turnstone.KindNotFound { // a small image has none
		return s.CauseOf(err)
	}
	if n := len(bundle); n > 0 && bundle[n-1] != '\n' {
		bundle = append(bundle, '\n')
	}
	bundle = append(bundle, hostca.PEM(t.Host)...)
	if t.CA != nil {
		bundle = append(bundle, t.CA.PEM()...)
	}
	return s.put(ctx, hostca.GuestPath, bundle)
}

// read returns at most a given number of bytes of a file of the guest. It gets them as a stream,
// because an answer would encode them as text, which takes several times as long.
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
		_, err := c.FileSystemRead(ctx,
			&wire.FileSystemReadParams{Path: path, Length: most, Stream: id})
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
