package oci

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"turnstone.dev/turnstone"
)

// A Request describes how to unpack an image.
type Request struct {
	Image   *Image
	Out     *os.File  // empty, open for reading and writing: gets the root image (EROFS)
	TempDir string    // for the contents of files until they are in Out
	Workdir string    // absolute; created if missing
	Log     io.Writer // gets a list of omitted and added files; may be nil
	// Bash returns a bash that runs without any library. It is called if the image has no bash,
	// because steps are bash; nil: such an image is rejected.
	Bash func(ctx context.Context) ([]byte, error)
}

// A Result describes an unpacked image.
type Result struct {
	Files     int    // files, folders and links
	Bytes     int64  // of the files' contents
	Status    []byte // Debian's list of packages (/var/lib/dpkg/status), if the image has one
	AddedBash bool   // of Request.Bash
}

// maxPull bounds the time of one Unpack, however slow the registry is.
const maxPull = 6 * time.Hour

// Unpack downloads the image's layers, verifies them, and creates one root image from them, with
// the whiteouts applied. It writes nothing to Out before all layers have been read. Downloads stay
// for a later attempt, and within Options.MaxKept for other images. Errors are those of Resolve;
// Exhausted if the disk has no space.
func (c *Client) Unpack(ctx context.Context, req Request) (*Result, error) {
	ctx, cancel := context.WithTimeout(ctx, maxPull)
	defer cancel()
	res, err := c.unpack(ctx, req)
	if err != nil {
		return nil, req.Image.Reference.failed(err)
	}
	c.evict()
	return res, nil
}

func (c *Client) unpack(ctx context.Context, req Request) (*Result, error) {
	p := &pull{c: c, img: req.Image}
	defer p.closeAll()
	if err := p.fetchAll(ctx); err != nil {
		return nil, err
	}
	c.opts.Progress(fmt.Sprintf("unpacking %d layers", len(req.Image.Layers)))
	t := newTree(standardLimits())
	var unpacked int64
	for i, layer := range req.Image.Layers {
		err := t.scan(ctx, p.files[i], layer, &unpacked)
		if err != nil {
			err = fmt.Errorf("layer %d of %d, %s: %w", i+1, len(req.Image.Layers),
				layer.Digest.Short(), err)
			return nil, errors.Join(err, c.forgetDamaged(err))
		}
	}
	res := &Result{}
	if err := t.finish(ctx, req, res); err != nil {
		return nil, err
	}
	if req.Log != nil {
		for _, s := range t.noted {
			fmt.Fprintln(req.Log, s)
		}
	}
	return res, t.write(ctx, req, p.files, res)
}

// forgetDamaged removes a blob that changed on the disk.
func (c *Client) forgetDamaged(err error) error {
	var damaged *errDamaged
	if !errors.As(err, &damaged) {
		return nil
	}
	return c.forget(damaged.d)
}

// A pull downloads the layers of one image.
type pull struct {
	c     *Client
	img   *Image
	files []*os.File
	got   atomic.Int64

	mu   sync.Mutex
	sess *session
}

// session connects at the first missing layer.
func (p *pull) session(ctx context.Context) (*session, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sess == nil {
		s, err := p.c.connect(ctx, p.img.Reference)
		if err != nil {
			return nil, err
		}
		p.sess = s
	}
	return p.sess, nil
}

// fetchAll opens all layers, some concurrently.
func (p *pull) fetchAll(ctx context.Context) error {
	p.files = make([]*os.File, len(p.img.Layers))
	total := int64(0)
	for _, l := range p.img.Layers {
		total += l.Size
	}
	defer p.report(total)()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for i, l := range p.img.Layers {
		group.Go(func() (err error) {
			p.files[i], err = p.layer(ctx, l)
			return err
		})
	}
	return group.Wait()
}

// layer opens one layer. A cached layer is trusted only if its digest still matches.
func (p *pull) layer(ctx context.Context, l Layer) (*os.File, error) {
	if f := p.c.kept(l.Digest, l.Size); f != nil {
		err := verify(f, l)
		if err == nil {
			p.got.Add(l.Size)
			return f, nil
		}
		_ = f.Close()
		if e := p.c.forgetDamaged(err); e != nil {
			return nil, errors.Join(err, e)
		}
	}
	s, err := p.session(ctx)
	if err != nil {
		return nil, err
	}
	f, _, err := s.blob(ctx, l.Digest, l.Size, &p.got)
	return f, err
}

// report reports the download's progress, until its result is called.
func (p *pull) report(total int64) (stop func()) {
	end := make(chan struct{})
	var done sync.WaitGroup
	done.Go(func() {
		tick := time.NewTicker(2 * time.Second)
		defer tick.Stop()
		for last := p.got.Load(); ; {
			select {
			case <-end:
				return
			case <-tick.C:
				now := p.got.Load()
				p.c.opts.Progress(fmt.Sprintf("pulling, %s of %s, %s/s",
					turnstone.Bytes(now).Human(), turnstone.Bytes(total).Human(),
					turnstone.Bytes(max(0, now-last)/2).Human()))
				last = now
			}
		}
	})
	return func() { close(end); done.Wait() }
}

func (p *pull) closeAll() {
	for _, f := range p.files {
		if f != nil {
			_ = f.Close()
		}
	}
	if p.sess != nil {
		p.sess.close()
	}
}
