package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"turnstone.dev/turnstone"
)

// A LayerFile is a layer with its content, which has the layer's size and digests.
type LayerFile struct {
	Layer
	Content io.ReaderAt
}

// Push puts a template into the registry as ref, which has a tag. It returns the manifest's digest.
// It sets t's format, platform and layers. Blobs that the registry has are not sent again. The same
// template gives the same digest.
func (c *Client) Push(ctx context.Context, ref Reference, t Artifact, files []LayerFile) (
	turnstone.Digest, error) {
	if ref.Digest() != "" {
		return "", turnstone.Errorf("oci.push", turnstone.KindInvalid, ref.String(),
			"has a digest, which is the result of a push").WithHint("write REGISTRY/NAME:TAG")
	}
	up, err := newUpload(t, files)
	if err != nil {
		return "", turnstone.NewError("oci.push", turnstone.KindInvalid, "template "+t.Name, err)
	}
	ctx, cancel := context.WithTimeout(ctx, maxPull)
	defer cancel()
	s, err := c.connectFor(ctx, ref, transport.PushScope)
	if err != nil {
		return "", ref.pushFailed(err)
	}
	defer s.close()
	img, err := partial.CompressedToImage(up)
	if err == nil {
		err = s.write(ctx, img, up)
	}
	if err != nil {
		return "", ref.pushFailed(err)
	}
	return turnstone.DigestBytes(up.manifest), nil
}

// write sends an upload. It ends if the registry reads nearly nothing.
func (s *session) write(ctx context.Context, img v1.Image, up *upload) error {
	return s.c.retry(ctx, func(ctx context.Context) (bool, error) {
		ctx, stop := context.WithCancelCause(ctx)
		defer stop(nil)
		had := up.sent.Load()
		defer watch(&up.sent, 2*s.c.opts.Stall, func() { stop(errStalled) })()
		err := remote.Write(s.ref.asked(), img, remote.WithContext(ctx),
			remote.WithTransport(s.trans), remote.WithJobs(1),
			remote.WithRetryBackoff(remote.Backoff{Steps: 1})) // retry does that
		return up.sent.Load() > had+minRate, stalled(ctx, err)
	})
}

// An upload is a template as an artifact. It implements partial.CompressedImageCore.
type upload struct {
	manifest, config []byte
	files            map[string]LayerFile // by digest
	sent             atomic.Int64
}

func newUpload(t Artifact, files []LayerFile) (*upload, error) {
	t.Format, t.OS, t.Architecture = templateFormat, platformOS, platformArch
	up := &upload{files: map[string]LayerFile{}}
	m := v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1,
		ArtifactType: TemplateType, Layers: []v1.Descriptor{}}
	t.DiffIDs = []turnstone.Digest{}
	for _, f := range files {
		h, err := v1.NewHash(string(f.Digest))
		if err != nil {
			return nil, err
		}
		t.DiffIDs = append(t.DiffIDs, f.DiffID)
		m.Layers = append(m.Layers,
			v1.Descriptor{MediaType: TemplateLayerType, Digest: h, Size: f.Size})
		up.files[string(f.Digest)] = f
	}
	var err error
	if err = t.check(); err != nil {
		return nil, err
	}
	if up.config, err = json.Marshal(t); err != nil {
		return nil, err
	}
	if len(up.config) > maxManifest {
		return nil, fmt.Errorf("its description has more than %d bytes", maxManifest)
	}
	h, err := v1.NewHash(string(turnstone.DigestBytes(up.config)))
	if err != nil {
		return nil, err
	}
	m.Config = v1.Descriptor{MediaType: TemplateConfigType, Digest: h, Size: int64(len(up.config))}
	up.manifest, err = json.Marshal(m)
	return up, err
}

// RawConfigFile implements partial.CompressedImageCore.
func (u *upload) RawConfigFile() ([]byte, error) { return u.config, nil }

// RawManifest implements partial.CompressedImageCore.
func (u *upload) RawManifest() ([]byte, error) { return u.manifest, nil }

// MediaType implements partial.CompressedImageCore.
func (u *upload) MediaType() (types.MediaType, error) { return types.OCIManifestSchema1, nil }

// LayerByDigest implements partial.CompressedImageCore.
func (u *upload) LayerByDigest(h v1.Hash) (partial.CompressedLayer, error) {
	f, ok := u.files[h.String()]
	if !ok {
		return nil, fmt.Errorf("%s is no layer of the template", h)
	}
	return &fileLayer{f, h, &u.sent}, nil
}

// A fileLayer implements partial.CompressedLayer.
type fileLayer struct {
	file LayerFile
	hash v1.Hash
	sent *atomic.Int64
}

func (l *fileLayer) Digest() (v1.Hash, error)            { return l.hash, nil }
func (l *fileLayer) DiffID() (v1.Hash, error)            { return v1.NewHash(string(l.file.DiffID)) }
func (l *fileLayer) Size() (int64, error)                { return l.file.Size, nil }
func (l *fileLayer) MediaType() (types.MediaType, error) { return TemplateLayerType, nil }

func (l *fileLayer) Compressed() (io.ReadCloser, error) {
	return io.NopCloser(&counted{io.NewSectionReader(l.file.Content, 0, l.file.Size), l.sent}), nil
}

// counted counts the bytes that are read.
type counted struct {
	r io.Reader
	n *atomic.Int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// pushFailed is failed for a push.
func (r Reference) pushFailed(err error) error {
	var status *transport.Error
	denied := errors.As(err, &status) && (status.StatusCode == http.StatusUnauthorized ||
		status.StatusCode == http.StatusForbidden)
	err = r.explained(err)
	var typed *turnstone.Error
	if !errors.As(err, &typed) {
		return err
	}
	out := *typed
	out.Op = "oci.push"
	switch {
	case denied:
		out.Kind, out.Hint = turnstone.KindDenied,
			"log in as a user who may push there: docker login "+r.Registry()
	case out.Kind == turnstone.KindTimeout:
		out.Hint = "try again; blobs that the registry has are not sent again"
	}
	return &out
}
