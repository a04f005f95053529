// Package share writes a template's files as layers for a registry.
package share

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/template/oci"
)

// A Source has the directories and the contents of trees. *store.Store implements it.
type Source interface {
	tree.Getter
	OpenContent(ctx context.Context, c turnstone.Content) (io.ReadCloser, error)
}

// Layer writes the tree as one layer into the empty file f. The same tree gives the same bytes.
func Layer(ctx context.Context, src Source, ref turnstone.TreeRef, f *os.File) (l oci.LayerFile,
	err error) {
	packed, plain := sha256.New(), sha256.New()
	count := &counter{w: io.MultiWriter(f, packed)}
	// One thread: the bytes must not depend on the number of processors.
	z, err := zstd.NewWriter(count, zstd.WithEncoderConcurrency(1),
		zstd.WithEncoderLevel(zstd.SpeedDefault))
	if err != nil {
		return l, err
	}
	if err := Tar(ctx, src, ref, io.MultiWriter(z, plain)); err != nil {
		_ = z.Close()
		return l, err
	}
	if err := z.Close(); err != nil {
		return l, err
	}
	return oci.LayerFile{Content: f, Layer: oci.Layer{Digest: digest(packed),
		DiffID: digest(plain), Size: count.n}}, nil
}

func digest(h hash.Hash) turnstone.Digest {
	return turnstone.Digest("sha256:" + hex.EncodeToString(h.Sum(nil)))
}

type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// whiteout begins the names that remove files of lower layers (OCI image specification, layers).
const whiteout = ".wh."

// Tar writes a tree as a tar stream, with owners, times, extended attributes and hard links.
func Tar(ctx context.Context, src Source, ref turnstone.TreeRef, w io.Writer) error {
	root, err := tree.GetRoot(ctx, src, ref)
	if err != nil {
		return err
	}
	first := map[string]string{} // of a file's further names
	for _, g := range root.Links {
		for _, name := range g[1:] {
			first[name] = g[0]
		}
	}
	p := &packer{ctx: ctx, src: src, tw: tar.NewWriter(w), first: first,
		buf: make([]byte, 256<<10)}
	if err := tree.Walk(ctx, src, ref, "/", p.entry); err != nil {
		return err
	}
	return p.tw.Close()
}

type packer struct {
	ctx   context.Context
	src   Source
	tw    *tar.Writer
	first map[string]string
	buf   []byte
}

func (p *packer) entry(name string, e *tree.Entry) error {
	if strings.HasPrefix(path.Base(name), whiteout) {
		return fmt.Errorf("%.200q cannot be in a layer, where such a name removes a file", name)
	}
	h := &tar.Header{Name: "." + name, Mode: int64(e.Mode), Uid: int(e.UID), Gid: int(e.GID),
		Format: tar.FormatPAX, ModTime: time.Unix(e.MTime.Sec, int64(e.MTime.Nsec))}
	for _, x := range e.Xattrs {
		if h.PAXRecords == nil {
			h.PAXRecords = map[string]string{}
		}
		h.PAXRecords["SCHILY.xattr."+x.Name] = string(x.Value)
	}
	if to, ok := p.first[name]; ok {
		h.Typeflag, h.Linkname, h.PAXRecords = tar.TypeLink, "."+to, nil
		return p.tw.WriteHeader(h)
	}
	switch e.Type {
	case tree.Dir:
		h.Typeflag, h.Name = tar.TypeDir, strings.TrimSuffix(h.Name, "/")+"/"
	case tree.Symlink:
		h.Typeflag, h.Linkname = tar.TypeSymlink, e.Target
	case tree.File:
		h.Typeflag, h.Size = tar.TypeReg, e.Size
	case tree.Char, tree.Block:
		h.Typeflag, h.Devmajor, h.Devminor = tar.TypeChar, int64(e.Major), int64(e.Minor)
		if e.Type == tree.Block {
			h.Typeflag = tar.TypeBlock
		}
	case tree.FIFO:
		h.Typeflag = tar.TypeFifo
	default:
		return fmt.Errorf("%.200q is of an unknown type", name)
	}
	if err := p.tw.WriteHeader(h); err != nil || e.Type != tree.File || e.Size == 0 {
		return err
	}
	in, err := p.src.OpenContent(p.ctx, e.Content)
	if err != nil {
		return fmt.Errorf("%.200q: %w", name, err)
	}
	_, err = io.CopyBuffer(struct{ io.Writer }{p.tw}, in, p.buf)
	return errors.Join(err, in.Close())
}
