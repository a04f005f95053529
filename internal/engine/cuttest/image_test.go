package cuttest

import (
	"archive/tar"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/engine/cuttest/internal/fsops"
	"turnstone.dev/turnstone/internal/template"
	"turnstone.dev/turnstone/internal/template/oci/ocitest"
	"turnstone.dev/turnstone/internal/turntest"
)

// onAnImage begins with an image of a registry that has the files of the first pieces. The other
// session's image has empty folders, in which it performs all pieces in one turn.
func onAnImage(s *session, of []sequence) (whole, cut *performance) {
	whole = s.world.session(s.pushed(of, 0)).whole("main", of)
	cut = s.world.session(s.pushed(of, 1)).perform("main", of)
	for i, s := range of { // the image is what the first pieces left on the host, which whole is compared with
		cut.shows[i].results = slices.Clone(whole.shows[i].results[:len(s[0])])
	}
	cut.pieces(1)
	return whole, cut
}

// pushed puts an image into a registry that has what the first n pieces of sequences leave, and
// returns its name.
func (s *session) pushed(of []sequence, n int) string {
	s.t.Helper()
	base := ok[*turnstone.Template](s.t)(template.NewStore(turntest.Home(s.t).Path("templates")).Ensure(s.t.Context(), "base", nil))
	programs := ok[[]ocitest.Entry](s.t)(ocitest.Copies(base.Root, "bin", "lib", "lib64", "usr/bin/bash", "usr/bin/sh",
		"usr/bin/dash", "usr/lib64/ld-linux-*", "usr/lib/x86_64-linux-gnu/ld-linux-*", "usr/lib/x86_64-linux-gnu/libc.so.*",
		"usr/lib/x86_64-linux-gnu/libtinfo.so.*"))
	programs = append(programs, ocitest.Program(strings.TrimPrefix(performer, "/"),
		string(ok[[]byte](s.t)(os.ReadFile(s.program)))))
	dir := filepath.Join(s.t.TempDir(), s.folder)
	if err := os.Mkdir(dir, 0o755); err != nil {
		s.t.Fatal(err)
	}
	for i, q := range of {
		d := fsops.Dir(filepath.Join(dir, name(i)))
		d.Do("begin")
		for _, op := range q[:n] {
			for _, line := range op {
				d.Do(line)
			}
		}
	}
	if s.registry == nil {
		s.registry = ocitest.Serve(s.t, nil)
	}
	at := "cut:" + s.name + "-" + name(n)
	s.registry.Push(s.t, at, ocitest.Image(s.t, ocitest.Config{Workdir: s.folder}, ocitest.Tar(s.t, programs...),
		ocitest.Tar(s.t, packed(s.t, filepath.Dir(dir))...)))
	return s.registry.Host + "/" + at
}

// packed returns the files of a directory with all that an image can say of them.
func packed(t testing.TB, dir string) (out []ocitest.Entry) {
	t.Helper()
	first := map[uint64]string{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		name := strings.TrimPrefix(path, dir+"/")
		if of := first[st.Ino]; of != "" {
			out = append(out, ocitest.Link(name, of))
			return nil
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		target := ""
		if info.Mode()&fs.ModeSymlink != 0 {
			if target, err = os.Readlink(path); err != nil {
				return err
			}
		}
		h, err := tar.FileInfoHeader(info, target)
		if err != nil {
			return err
		}
		h.Name, h.Format, h.Uname, h.Gname = name, tar.FormatPAX, "", ""
		h.Mode |= int64(st.Mode & unix.S_IFMT) // or ocitest would have a default in the place of no permissions
		entry := ocitest.Entry{Header: *h}
		switch {
		case info.IsDir():
			entry.Name += "/"
		case info.Mode().IsRegular():
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			entry.Content = string(b)
		}
		if st.Nlink > 1 && !info.IsDir() {
			first[st.Ino] = name
		}
		out = append(out, entry)
		return addXattrs(path, &out[len(out)-1].Header)
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func addXattrs(path string, h *tar.Header) error {
	b := make([]byte, 64<<10)
	n, err := unix.Llistxattr(path, b)
	if err != nil {
		return err
	}
	for _, x := range strings.Split(strings.TrimSuffix(string(b[:n]), "\x00"), "\x00") {
		value := make([]byte, 64<<10)
		if x == "" {
			continue
		}
		n, err := unix.Lgetxattr(path, x, value)
		if err != nil {
			return err
		}
		if h.PAXRecords == nil {
			h.PAXRecords = map[string]string{}
		}
		h.PAXRecords["SCHILY.xattr."+x] = string(value[:n])
	}
	return nil
}
