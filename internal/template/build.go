package template

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

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/fsimage/tar2erofs"
	"turnstone.dev/turnstone/internal/template/debian"
)

// builderVersion is part of every digest. It changes when the same spec must result in another
// image.
const builderVersion = 2

// maxImage bounds the files of one image, in bytes.
const maxImage = 32 << 30

// maxStatus bounds dpkg's database of one image, in bytes.
const maxStatus = 64 << 20

// emptied are the folders at the root of an image whose content is left out: the guest's kernel or
// agent fills them, or their content belongs to one sandbox only.
func emptied() []string { return []string{"dev", "proc", "sys", "run", "tmp"} }

// leftOut reports whether an entry of the built root stays out of the image: it belongs to one
// boot, describes the building host, or differs between builds.
func leftOut(p string, hdr *tar.Header) bool {
	first, rest, deeper := strings.Cut(p, "/")
	if deeper && rest != "" && slices.Contains(emptied(), first) {
		return true
	}
	switch p {
	case "etc/hostname", "etc/resolv.conf", "etc/hosts", // of the building host; created again
		"etc/machine-id", "var/lib/dbus/machine-id",
		"var/cache/ldconfig/aux-cache", // contains inode numbers
		"var/lib/dpkg/lock", "var/lib/dpkg/lock-frontend", "var/lib/dpkg/triggers/Lock",
		"etc/.pwd.lock", "etc/passwd-", "etc/group-", "etc/shadow-", "etc/gshadow-":
		return true
	}
	if hdr.Typeflag == tar.TypeDir {
		return false // programs need the empty folder
	}
	for _, dir := range []string{"var/log/", "var/lib/apt/lists/", "var/cache/apt/", "var/tmp/"} {
		if strings.HasPrefix(p, dir) {
			return true
		}
	}
	return false
}

// settle removes differences between builds from an entry that is kept.
func settle(p string, hdr *tar.Header) {
	switch p {
	case "var/lib/apt/lists/partial", "var/cache/apt/archives/partial":
		// Owned by root, or by _apt if apt used it; apt corrects the owner when it runs.
		hdr.Uid, hdr.Gid, hdr.Uname, hdr.Gname = 0, 0, "", ""
	}
}

// A built image is the result of one build.
type built struct {
	packages map[string]string // name → version
}

// buildImage builds spec's image into the empty file out.
func buildImage(ctx context.Context, spec *Spec, out *os.File, tempDir string, log io.Writer,
	progress func(string)) (*built, error) {
	if err := spec.addPrograms(ctx, progress); err != nil { // first, because it takes less time
		return nil, err
	}
	epoch := time.Unix(debian.Epoch, 0).UTC()
	w := tar2erofs.New(out, tar2erofs.Options{MaxBytes: maxImage, Latest: epoch, TempDir: tempDir})
	var status bytes.Buffer
	req := debian.Request{Suite: strings.TrimPrefix(spec.Base, "debian:"), Variant: "minbase",
		Include: spec.Packages,
		Slim:    true, Log: log, Progress: progress, Mirrors: spec.mirrors}
	replaced := map[string]bool{}
	for _, f := range spec.Files {
		replaced[strings.TrimPrefix(f.Path, "/")] = true
	}
	req.Proxy = spec.proxy
	if spec.Lock != nil {
		req.Include = debian.Pinned(spec.Packages, spec.Lock.Apt)
	}
	err := debian.Fetch(ctx, req, func(r io.Reader) error {
		return w.AddTar(r, func(p string, hdr *tar.Header, content *io.Reader) bool {
			if p == "var/lib/dpkg/status" && hdr.Size <= maxStatus {
				*content = io.TeeReader(*content, &status)
			}
			settle(p, hdr)
			return !leftOut(p, hdr) && !(replaced[p] && hdr.Typeflag != tar.TypeDir)
		})
	})
	if err != nil {
		return nil, err
	}
	if err := addOwn(w, spec, epoch); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	b := &built{packages: debian.Installed(status.String())}
	if len(b.packages) == 0 {
		return nil, errors.New("the image has no installed packages")
	}
	return b, nil
}

// addOwn adds the files that no package contains: the workspace, the files that name the machine,
// and the spec's files.
func addOwn(w *tar2erofs.Writer, spec *Spec, epoch time.Time) error {
	file := func(name string, mode int64, content []byte) error {
		return w.Add(&tar.Header{Typeflag: tar.TypeReg,
			Name: strings.TrimPrefix(name, "/"), Mode: mode,
			Size: int64(len(content)), ModTime: epoch}, bytes.NewReader(content))
	}
	own := map[string]bool{}
	for _, f := range spec.Files {
		own[f.Path] = true
		if err := file(f.Path, int64(f.Mode), f.Content); err != nil {
			return turnstone.NewError("template.build", turnstone.KindInvalid, spec.Name, err).
				WithHint("change the path in the spec's files")
		}
	}
	// The agent gives each sandbox its own files; programs that look earlier see these.
	for _, f := range []File{
		{"/etc/hostname", 0o644, []byte("turn\n")},
		{"/etc/hosts", 0o644,
			[]byte("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n")},
		{"/etc/resolv.conf", 0o644, nil},
		{"/etc/machine-id", 0o444, nil},
	} {
		if own[f.Path] {
			continue
		}
		if err := file(f.Path, int64(f.Mode), f.Content); err != nil {
			return err
		}
	}
	for _, dir := range slices.Compact([]string{DefaultWorkdir, spec.Workdir}) {
		if err := w.MkdirAll(strings.TrimPrefix(dir, "/")); err != nil {
			return turnstone.Errorf("template.build", turnstone.KindInvalid, spec.Name,
				"workdir: %w", err).
				WithHint("choose a workdir that is a folder, such as " + DefaultWorkdir)
		}
	}
	return nil
}

// addPrograms fetches the programs of the spec's wheels and adds them to its files.
func (s *Spec) addPrograms(ctx context.Context, progress func(string)) error {
	if len(s.Wheels) == 0 {
		return nil
	}
	progress("fetching wheels")
	programs, err := s.programs(ctx, s.Wheels)
	if err != nil {
		return err
	}
	s.Files = slices.Clone(s.Files) // the caller's array is the original spec's
	for _, p := range programs {
		path := "/usr/local/bin/" + p.Name
		if slices.ContainsFunc(s.Files, func(f File) bool { return f.Path == path }) {
			return turnstone.Errorf("template.build", turnstone.KindInvalid, path,
				"is a program of a wheel too").WithHint("change the path in the spec's files")
		}
		s.Files = append(s.Files, File{Path: path, Mode: 0o755, Content: p.Content})
	}
	return nil
}
