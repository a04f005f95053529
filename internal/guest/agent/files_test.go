package agent

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/guest/files"
	"turnstone.dev/turnstone/wire"
)

// jail is an agent whose processes' root is a folder, with a secret beside it.
func jail(t *testing.T) (h *harness, root string) {
	t.Helper()
	base := t.TempDir()
	root = filepath.Join(base, "root")
	for _, d := range []string{"run", "etc", "area/sub"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{"secret": "host", "root/etc/secret": "guest",
		"root/area/a": "text"} {
		if err := os.WriteFile(filepath.Join(base, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	a, err := New(Options{Chroot: root})
	if err != nil {
		t.Fatal(err)
	}
	return serve(t, a), root
}

func (h *harness) read(path string) (string, error) {
	res, err := h.FileSystemRead(h.t.Context(), &wire.FileSystemReadParams{Path: path})
	if err != nil {
		return "", err
	}
	return string(res.Data), nil
}

func (h *harness) write(path, text string) error {
	_, err := h.FileSystemWrite(h.t.Context(),
		&wire.FileSystemWriteParams{Path: path, Data: []byte(text)})
	return err
}

// TestEscapes checks that no link leads a file operation out of the sandbox's root.
func TestEscapes(t *testing.T) {
	h, root := jail(t)
	base := filepath.Dir(root)
	up := strings.Repeat("../", 12)
	for name, target := range map[string]string{
		"rel": up + "secret", "rel2": "../../secret", "abs": base + "/secret", "dir": up + base,
		"etc": "/etc", "loop": "loop",
		"deep": "sub/../../../../etc/secret", "magic": "/proc/self/root/etc", "out": base + "/new",
	} {
		if err := os.Symlink(target, filepath.Join(root, "area", name)); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]string{"/area/etc/secret": "guest", "/area/deep": "guest",
		"/../../etc/secret": "guest"} {
		if got, err := h.read(path); err != nil || got != want {
			t.Errorf("%s: %q %v", path, got, err)
		}
	}
	for _, path := range []string{"/area/rel", "/area/rel2", "/area/abs", "/area/dir/secret",
		"/../secret", "/area/../../secret", "/area/magic/passwd"} {
		if got, err := h.read(path); err == nil {
			t.Errorf("%s: read %q", path, got)
		}
	}
	_, err := h.read("/area/loop")
	kindIs(t, err, turnstone.KindInvalid)
	// A write through a link lands inside, at the link's target.
	if err := os.MkdirAll(filepath.Join(root, base), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := h.write("/area/out", "inside"); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(root, base, "new")); err != nil ||
		string(b) != "inside" {
		t.Errorf("%q %v", b, err)
	}
	if _, err := os.Lstat(filepath.Join(base, "new")); err == nil {
		t.Error("written outside of the root")
	}
	if st, err := os.Lstat(filepath.Join(root, "area/out")); err != nil ||
		st.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link was replaced: %v", err)
	}
	for _, err := range []error{
		h.FileSystemRemove(t.Context(),
			&wire.FileSystemRemoveParams{Path: "/area/dir/../secret", Recursive: true}),
		h.FileSystemMove(t.Context(),
			&wire.FileSystemMoveParams{From: "/area/a", To: "/area/rel2/x"}),
		h.FileSystemMkdir(t.Context(),
			&wire.FileSystemMkdirParams{Path: "/area/loop/x", Parents: true}),
		h.Get(t.Context(), "/area/abs", io.Discard),
		h.Put(t.Context(), "/area/loop/x", strings.NewReader("")),
	} {
		if err == nil {
			t.Error("an escape was carried out")
		}
	}
	if err := h.FileSystemRemove(t.Context(),
		&wire.FileSystemRemoveParams{Path: "/area", Recursive: true}); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(filepath.Join(base, "secret")); err != nil || string(b) != "host" {
		t.Errorf("the host's file: %q %v", b, err)
	}
	if b, err := os.ReadFile(filepath.Join(root, "etc/secret")); err != nil ||
		string(b) != "guest" {
		t.Errorf("what a link pointed to is gone: %v", err)
	}
}

// TestStatResolves checks what stat says of the way to a file: of links in a row, in the middle of a path, and of
// those that leave the root. A link itself has no such path.
func TestStatResolves(t *testing.T) {
	h, root := jail(t)
	for name, to := range map[string]string{"one": "two", "two": "/area/a", "dir": "/area", "up": "../../../area/a",
		"none": "nothing", "loop": "loop"} {
		if err := os.Symlink(to, filepath.Join(root, "area", name)); err != nil {
			t.Fatal(err)
		}
	}
	no := false
	for name, want := range map[string]string{"/area/a": "", "/area/./a": "", "/area/one": "/area/a", "/area/two": "/area/a",
		"/area/dir": "/area", "/area/dir/dir/one": "/area/a", "/area/dir/a": "/area/a", "/area/up": "/area/a", "/": ""} {
		st, err := h.FileSystemStat(t.Context(), &wire.FileSystemStatParams{Path: name})
		if err != nil || st.File.Resolved != want {
			t.Errorf("%s: %+v %v", name, st, err)
		}
		st, err = h.FileSystemStat(t.Context(), &wire.FileSystemStatParams{Path: name, Follow: &no})
		if err != nil || st.File.Resolved != "" {
			t.Errorf("%s itself: %+v %v", name, st, err)
		}
	}
	for _, name := range []string{"/area/none", "/area/loop"} {
		if st, err := h.FileSystemStat(t.Context(), &wire.FileSystemStatParams{Path: name}); err == nil {
			t.Errorf("%s: %+v", name, st)
		}
	}
}

func TestFileSystem(t *testing.T) {
	h, root := jail(t)
	ctx := t.Context()
	if err := os.Symlink("a", filepath.Join(root, "area/link")); err != nil {
		t.Fatal(err)
	}
	no := false
	st, err := h.FileSystemStat(ctx, &wire.FileSystemStatParams{Path: "/area//link"})
	if err != nil || st.File.Type != "file" || st.File.Size != 4 || st.File.Path != "/area/link" ||
		st.File.Mode != 0o644 {
		t.Errorf("%+v %v", st, err)
	}
	st, err = h.FileSystemStat(ctx, &wire.FileSystemStatParams{Path: "/area/link", Follow: &no})
	if err != nil || st.File.Type != "symlink" || st.File.Target != "a" || st.File.Name != "link" {
		t.Errorf("%+v %v", st, err)
	}
	if _, err := time.Parse(time.RFC3339Nano, st.File.Modified); err != nil {
		t.Error(err)
	}
	for i := range 1500 {
		if err := os.WriteFile(filepath.Join(root, "area/sub", fmt.Sprintf("f%04d", i)), nil,
			0o600); err != nil {
			t.Fatal(err)
		}
	}
	list := func(after string, limit int64) *wire.FileSystemListResult {
		t.Helper()
		res, err := h.FileSystemList(ctx,
			&wire.FileSystemListParams{Path: "/area/sub", After: after, Limit: limit})
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	if r := list("", 0); len(r.Entries) != 1000 || !r.More ||
		r.Entries[0].Path != "/area/sub/f0000" || r.Entries[999].Name != "f0999" {
		t.Errorf("%d %v", len(r.Entries), r.More)
	}
	if r := list("f0999", 0); len(r.Entries) != 500 || r.More || r.Entries[0].Name != "f1000" ||
		r.Entries[499].Name != "f1499" {
		t.Errorf("%d %v", len(r.Entries), r.More)
	}
	if r := list("f0003x", 2); len(r.Entries) != 2 || !r.More || r.Entries[0].Name != "f0004" {
		t.Errorf("%+v", r)
	}
	_, err = h.FileSystemList(ctx, &wire.FileSystemListParams{Path: "/area/a"})
	kindIs(t, err, turnstone.KindNotFound)
	_, err = h.FileSystemStat(ctx, &wire.FileSystemStatParams{Path: "area"})
	kindIs(t, err, turnstone.KindInvalid)

	if err := h.FileSystemMkdir(ctx,
		&wire.FileSystemMkdirParams{Path: "/new/x/y"}); turnstone.KindOf(
		err) != turnstone.KindNotFound {
		t.Errorf("mkdir without parents: %v", err)
	}
	for range 2 {
		if err := h.FileSystemMkdir(ctx, &wire.FileSystemMkdirParams{Path: "/new/x/y/",
			Parents: true, Mode: 0o2750}); err != nil {
			t.Fatal(err)
		}
	}
	if st, err := os.Stat(filepath.Join(root, "new/x/y")); err != nil ||
		st.Mode().Perm() != 0o750 || st.Mode()&os.ModeSetgid == 0 {
		t.Errorf("%v %v", st.Mode(), err)
	}
	kindIs(t, h.FileSystemMkdir(ctx, &wire.FileSystemMkdirParams{Path: "/new"}),
		turnstone.KindInvalid)
	kindIs(t, h.FileSystemMkdir(ctx, &wire.FileSystemMkdirParams{Path: "/area/a/b", Parents: true}),
		turnstone.KindNotFound)
	move := func(from, to string, over bool) error {
		return h.FileSystemMove(ctx,
			&wire.FileSystemMoveParams{From: from, To: to, Overwrite: over})
	}
	kindIs(t, move("/area/link", "/area/a", false), turnstone.KindInvalid)
	if err := move("/area/a", "/new/b", false); err != nil {
		t.Error(err)
	}
	kindIs(t, move("/area/a", "/new/c", false), turnstone.KindNotFound)
	if err := h.write("/new/c", "c"); err != nil {
		t.Fatal(err)
	}
	if err := move("/new/c", "/new/b", true); err != nil {
		t.Error(err)
	}
	if got, err := h.read("/new/b"); err != nil || got != "c" {
		t.Errorf("%q %v", got, err)
	}
	remove := func(path string, all bool) error {
		return h.FileSystemRemove(ctx, &wire.FileSystemRemoveParams{Path: path, Recursive: all})
	}
	kindIs(t, remove("/new", false), turnstone.KindInvalid)
	kindIs(t, remove("/", true), turnstone.KindInvalid)
	kindIs(t, remove("/new/..", true), turnstone.KindInvalid)
	if err := remove("/new/x/y", false); err != nil {
		t.Error(err)
	}
	if err := remove("/new", true); err != nil {
		t.Error(err)
	}
	kindIs(t, remove("/new", true), turnstone.KindNotFound)
}

func TestReadWrite(t *testing.T) {
	h, root := jail(t)
	ctx := t.Context()
	file := filepath.Join(root, "area/a")
	if err := os.Chmod(file, 0o750|os.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	if os.Getuid() == 0 {
		if err := os.Chown(file, 1234, 5678); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(file, 0o750|os.ModeSetuid); err != nil {
			t.Fatal(err)
		}
	}
	before, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = before.Close() }()
	if err := h.write("/area/a", "new\x00\xff"); err != nil {
		t.Fatal(err)
	}
	if b, _ := io.ReadAll(before); string(b) != "text" {
		t.Errorf("who had the file open sees %q: it was not replaced", b)
	}
	st, err := h.FileSystemStat(ctx, &wire.FileSystemStatParams{Path: "/area/a"})
	if err != nil || st.File.Mode != 0o4750 ||
		(os.Getuid() == 0 && (st.File.UID != 1234 || st.File.GID != 5678)) {
		t.Errorf("%+v %v", st, err)
	}
	for _, tt := range []struct {
		offset, length int64
		want           string
		eof            bool
	}{{0, 0, "new\x00\xff", true}, {1, 2, "ew", false}, {3, 2, "\x00\xff", true}, {5, 0, "", true},
		{99, 1, "", true}} {
		res, err := h.FileSystemRead(ctx,
			&wire.FileSystemReadParams{Path: "/area/a", Offset: tt.offset, Length: tt.length})
		if err != nil || string(res.Data) != tt.want || res.Eof != tt.eof || res.Size != 5 {
			t.Errorf("%+v: %+v %v", tt, res, err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(root, "area/pipe"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err = h.read("/area/pipe")
	kindIs(t, err, turnstone.KindInvalid)
	kindIs(t, h.write("/area/pipe", "x"), turnstone.KindInvalid)
	_, err = h.read("/area")
	kindIs(t, err, turnstone.KindInvalid)
	kindIs(t, h.write("/area", "x"), turnstone.KindInvalid)
	kindIs(t, h.write("/nope/x", "x"), turnstone.KindNotFound)
	if _, err := h.FileSystemWrite(ctx,
		&wire.FileSystemWriteParams{Path: "/nope/y/x", Parents: true, Mode: 0o600}); err != nil {
		t.Error(err)
	}
	if st, err := os.Stat(filepath.Join(root, "nope/y/x")); err != nil || st.Mode() != 0o600 ||
		st.Size() != 0 {
		t.Errorf("%v %v", st, err)
	}

	// By streams, in both directions.
	data := bytes.Repeat([]byte("0123456789abcdef"), 200_000)
	id := h.NewStream()
	s, err := h.Sender(id)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = s.Write(data); _ = s.Close() }()
	if res, err := h.FileSystemWrite(ctx, &wire.FileSystemWriteParams{Path: "/area/big",
		Stream: id}); err != nil || res.Size != int64(len(data)) {
		t.Fatalf("%+v %v", res, err)
	}
	id = h.NewStream()
	r, err := h.Receiver(id)
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan []byte, 1)
	go func() { b, _ := io.ReadAll(r); got <- b }()
	res, err := h.FileSystemRead(ctx,
		&wire.FileSystemReadParams{Path: "/area/big", Offset: 16, Stream: id})
	if b := <-got; err != nil || !res.Eof || !bytes.Equal(b, data[16:]) {
		t.Errorf("%d bytes, %+v %v", len(b), res, err)
	}
	// A reset stream leaves the old file, and nothing beside it.
	id = h.NewStream()
	if s, err = h.Sender(id); err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = s.Write(data[:100_000]); s.Abort(io.ErrUnexpectedEOF) }()
	if _, err := h.FileSystemWrite(ctx,
		&wire.FileSystemWriteParams{Path: "/area/big", Stream: id}); err == nil {
		t.Error("a stream that was given up was written")
	}
	entries, err := os.ReadDir(filepath.Join(root, "area"))
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if want := []string{"a", "big", "pipe", "sub"}; err != nil || !slices.Equal(names, want) {
		t.Errorf("%q %v", names, err)
	}
	if st, err := os.Stat(filepath.Join(root, "area/big")); err != nil ||
		st.Size() != int64(len(data)) {
		t.Errorf("%v %v", st, err)
	}
}

// TestWatch checks that changes are reported, also in directories that are created during the
// watch.
func TestWatch(t *testing.T) {
	h, root := jail(t)
	l := h.listen(nil)
	ctx := t.Context()
	watch := func(path string, recursive bool) string {
		t.Helper()
		res, err := l.FileSystemWatch(ctx,
			&wire.FileSystemWatchParams{Path: path, Recursive: recursive})
		if err != nil {
			t.Fatal(err)
		}
		return res.WatchID
	}
	expect := func(id string, want ...string) {
		t.Helper()
		left := slices.Clone(want)
		for len(left) > 0 {
			e := next[wire.FileSystemChangedEvent](l)
			if e.WatchID != id {
				continue
			}
			if e.Overflow {
				t.Error("overflow")
			}
			for _, c := range e.Changes {
				s := string(c.Kind) + " " + c.Path
				if strings.Contains(c.Path, files.TempPrefix) {
					t.Errorf("the agent's own file is told of: %s", s)
				}
				if i := slices.Index(left, s); i >= 0 {
					left = slices.Delete(left, i, i+1)
				}
			}
		}
	}
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	in := func(name string) string { return filepath.Join(root, name) }

	tree := watch("/area", true)
	do(h.write("/area/whole", "text"))
	expect(tree, "created /area/whole")
	do(os.WriteFile(in("area/n"), []byte("1"), 0o644))
	expect(tree, "created /area/n", "modified /area/n")
	do(os.WriteFile(in("area/sub/m"), []byte("1"), 0o644))
	expect(tree, "created /area/sub/m", "modified /area/sub/m")
	do(os.Chmod(in("area/n"), 0o600))
	expect(tree, "attributes /area/n")
	do(os.MkdirAll(in("etc/tree/deep/deeper"), 0o755))
	do(os.WriteFile(in("etc/tree/deep/x"), nil, 0o644))
	do(os.Rename(in("etc/tree"), in("area/tree")))
	expect(tree, "created /area/tree", "created /area/tree/deep", "created /area/tree/deep/deeper",
		"created /area/tree/deep/x")
	do(os.WriteFile(in("area/tree/deep/deeper/y"), nil, 0o644))
	expect(tree, "created /area/tree/deep/deeper/y")
	do(os.Rename(in("area/tree"), in("etc/tree")))
	expect(tree, "removed /area/tree")
	do(os.WriteFile(in("etc/tree/deep/z"), nil, 0o644)) // no longer watched
	do(os.Remove(in("area/n")))
	for done := false; !done; {
		for _, c := range next[wire.FileSystemChangedEvent](l).Changes {
			if strings.HasSuffix(c.Path, "/z") {
				t.Errorf("told of %s", c.Path)
			}
			done = done || c.Path == "/area/n"
		}
	}
	if err := l.FileSystemUnwatch(ctx, &wire.FileSystemUnwatchParams{WatchID: tree}); err != nil {
		t.Error(err)
	}
	kindIs(t, l.FileSystemUnwatch(ctx, &wire.FileSystemUnwatchParams{WatchID: tree}),
		turnstone.KindNotFound)

	one := watch("/area/a", false)
	do(os.WriteFile(in("area/other"), []byte("1"), 0o644))
	do(h.write("/area/a", "replaced"))
	for done := false; !done; {
		for _, c := range next[wire.FileSystemChangedEvent](l).Changes {
			if c.Path != "/area/a" {
				t.Errorf("told of %s", c.Path)
			}
			done = true
		}
	}
	do(os.Remove(in("area/a")))
	expect(one, "removed /area/a")
	_, err := l.FileSystemWatch(ctx, &wire.FileSystemWatchParams{Path: "/area/a"})
	kindIs(t, err, turnstone.KindNotFound)
	for range files.MaxWatches - 1 {
		watch("/etc", false)
	}
	_, err = l.FileSystemWatch(ctx, &wire.FileSystemWatchParams{Path: "/etc"})
	kindIs(t, err, turnstone.KindExhausted)
}
