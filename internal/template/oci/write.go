package oci

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"turnstone.dev/turnstone/internal/fsimage/tar2erofs"
	"turnstone.dev/turnstone/internal/template/debian"
)

// finish adds the files that a sandbox needs to the tree.
func (t *fsTree) finish(ctx context.Context, req Request, res *Result) error {
	t.layer++
	if n := t.lookup("var/lib/dpkg/status"); n != nil {
		res.Status = n.file.kept
	}
	user, err := t.user(req.Image.User)
	if err != nil {
		return err
	}
	// The image has empty folders for the guest's kernel and agent.
	for _, name := range []string{"dev", "proc", "sys", "run"} {
		if err := t.put(t.root, name, &node{kids: map[string]*node{},
			file: &inode{kind: tar.TypeDir, mode: 0o755, mtime: built()}}); err != nil {
			return err
		}
	}
	if err := t.folder("tmp", 0o1777, ids{}); err != nil {
		return err
	}
	if err := t.folder("root", 0o700, ids{}); err != nil {
		return err
	}
	if err := t.folder(req.Workdir, 0o755, user); err != nil {
		return err
	}
	for _, f := range []struct {
		name, content string
		mode          int64
	}{
		{"hostname", "turn\n", 0o644},
		{"hosts", "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n", 0o644},
		{"resolv.conf", "", 0o644},
		{"machine-id", "", 0o444},
	} {
		if err := t.file("etc", f.name, f.mode, []byte(f.content)); err != nil {
			return err
		}
	}
	return t.shell(ctx, req, res)
}

// built is the time of all files that come from no layer.
func built() time.Time { return time.Unix(debian.Epoch, 0).UTC() }

// folder creates a folder if it is missing.
func (t *fsTree) folder(name string, mode int64, owner ids) error {
	segments := strings.Split(name, "/")
	if n := t.lookup(name); n != nil {
		if !n.isDir() {
			return unusable("", "its /%s is not a folder", strings.TrimPrefix(name, "/"))
		}
		return nil
	}
	n, err := t.walk(segments, true)
	if err != nil {
		return unusable("", "its /%s %v", strings.TrimPrefix(name, "/"), err)
	}
	n.file.mode, n.file.uid, n.file.gid = mode, owner.uid, owner.gid
	return nil
}

// file puts a file into a folder, and replaces any file of that name.
func (t *fsTree) file(dir, name string, mode int64, content []byte) error {
	n, err := t.walk(strings.Split(dir, "/"), true)
	if err != nil {
		return unusable("", "its /%s %v", dir, err)
	}
	return t.put(n, name,
		&node{file: &inode{kind: tar.TypeReg, mode: mode, mtime: built(), size: int64(len(content)),
			kept: content, layer: t.layer}})
}

// shell ensures that the image has a bash at the path that steps use, and a sh.
func (t *fsTree) shell(ctx context.Context, req Request, res *Result) error {
	if err := t.folder("bin", 0o755, ids{}); err != nil {
		return err
	}
	if n := t.lookup("bin/bash"); !runs(n) {
		if err := t.bash(ctx, req, res); err != nil {
			return err
		}
	}
	if n := t.lookup("bin/sh"); !runs(n) {
		return t.link("bin", "sh", "bash")
	}
	return nil
}

func runs(n *node) bool {
	return n != nil && n.file.kind == tar.TypeReg && n.file.mode&0o111 != 0 && n.file.size > 0
}

func (t *fsTree) bash(ctx context.Context, req Request, res *Result) error {
	for _, elsewhere := range []string{"/usr/bin/bash", "/usr/local/bin/bash"} {
		if runs(t.lookup(elsewhere)) {
			return t.link("bin", "bash", elsewhere)
		}
	}
	if req.Bash == nil {
		return unusable("take an image that has bash", "it has no bash, which runs the steps")
	}
	program, err := req.Bash(ctx)
	if err != nil {
		return err
	}
	res.AddedBash = true
	t.note("the image has no bash: Debian's static one is added as /bin/bash")
	return t.file("bin", "bash", 0o755, program)
}

// link puts a symbolic link into a folder, and replaces any file of that name.
func (t *fsTree) link(dir, name, target string) error {
	n, err := t.walk([]string{dir}, true)
	if err != nil {
		return unusable("", "its /%s %v", dir, err)
	}
	return t.put(n, name,
		&node{file: &inode{kind: tar.TypeSymlink, mode: 0o777, mtime: built(), target: target}})
}

// A writer writes the tree into a root image.
type writer struct {
	t     *fsTree
	w     *tar2erofs.Writer
	first map[*inode]string   // the first name of each file
	more  map[*inode][]string // its other names
	parts [][]*inode          // by layer: its regular files
	paths int64               // bytes of all paths
	size  int64               // of the regular files
	files int
}

// maxPaths bounds the total length of all paths of an image, in bytes.
const maxPaths = 512 << 20

// write writes the image. It reads the layers again, for the contents.
func (t *fsTree) write(ctx context.Context, req Request, blobs []*os.File, res *Result) error {
	w := &writer{t: t, first: map[*inode]string{}, more: map[*inode][]string{},
		parts: make([][]*inode, t.layer+1),
		w: tar2erofs.New(req.Out, tar2erofs.Options{MaxBytes: maxUnpacked, TempDir: req.TempDir,
			Built: built(), Latest: time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)})}
	if err := w.visit("", t.root); err != nil {
		return err
	}
	// The image, and the contents until they are in it.
	if err := room(req.Out, 2*w.size); err != nil {
		return err
	}
	for i, files := range w.parts {
		slices.SortFunc(files, func(a, b *inode) int { return int(a.entry) - int(b.entry) })
		var err error
		if i < len(blobs) {
			err = w.contents(ctx, blobs[i], req.Image.Layers[i].Size, files)
		} else {
			for _, f := range files {
				err = errors.Join(err, w.regular(f, bytes.NewReader(f.kept)))
			}
		}
		if err != nil {
			return err
		}
	}
	for f, names := range w.more {
		slices.Sort(names)
		if f.kind == tar.TypeReg {
			continue // its content is complete
		}
		if err := w.links(f); err != nil {
			return err
		}
	}
	res.Files, res.Bytes = w.files, w.size
	return w.w.Close()
}

// visit walks a folder, in the order of the names, and adds everything except regular files.
func (w *writer) visit(name string, n *node) error {
	w.files++
	if w.paths += int64(len(name)); w.paths > maxPaths {
		return unusable("", "the paths of its files have more than %d bytes", maxPaths)
	}
	f := n.file
	if !n.isDir() {
		if _, again := w.first[f]; again {
			w.more[f] = append(w.more[f], name)
			return nil
		}
		w.first[f] = name
		if f.kind == tar.TypeReg {
			w.size += f.size
			w.parts[f.layer] = append(w.parts[f.layer], f)
			return nil
		}
		return w.w.Add(header(f, name), nil)
	}
	if err := w.w.Add(header(f, name), nil); err != nil {
		return err
	}
	names := make([]string, 0, len(n.kids))
	for kid := range n.kids {
		names = append(names, kid)
	}
	slices.Sort(names)
	for _, kid := range names {
		if err := w.visit(strings.TrimPrefix(name+"/"+kid, "/"), n.kids[kid]); err != nil {
			return err
		}
	}
	return nil
}

// contents adds the regular files whose content is in one layer.
func (w *writer) contents(ctx context.Context, blob *os.File, size int64, files []*inode) error {
	if len(files) == 0 {
		return nil
	}
	s, err := openLayer(ctx, blob, size, nil, nil)
	if err != nil {
		return err
	}
	defer s.close()
	for len(files) > 0 {
		hdr, entry, err := s.next()
		if err == io.EOF {
			return mismatch("the layer changed while it was read")
		}
		if err != nil {
			return tarError(err)
		}
		if entry != files[0].entry {
			continue
		}
		if hdr.Size != files[0].size {
			return mismatch("the layer changed while it was read")
		}
		if err := w.regular(files[0], s); err != nil {
			return err
		}
		files = files[1:]
	}
	return nil
}

// regular adds a file with its content, under all its names.
func (w *writer) regular(f *inode, content io.Reader) error {
	if err := w.w.Add(header(f, w.first[f]), content); err != nil {
		return err
	}
	return w.links(f)
}

func (w *writer) links(f *inode) error {
	for _, name := range w.more[f] {
		if err := w.w.Add(&tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: w.first[f]},
			nil); err != nil {
			return err
		}
	}
	return nil
}

func header(f *inode, name string) *tar.Header {
	mtime := f.mtime
	if mtime.IsZero() {
		mtime = built()
	}
	return &tar.Header{Typeflag: f.kind, Name: name, Linkname: f.target, Mode: f.mode, Uid: f.uid,
		Gid: f.gid, Size: f.size,
		ModTime: mtime, Devmajor: f.dev[0], Devminor: f.dev[1], PAXRecords: f.xattrs}
}
