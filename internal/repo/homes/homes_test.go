package homes_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/repo/homes"
	"turnstone.dev/turnstone/internal/repo/repotest"
	"turnstone.dev/turnstone/internal/store"
	"turnstone.dev/turnstone/internal/store/session"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
)

func quiet(string) {}

func ok[T any](t testing.TB) func(v T, err error) T { return repotest.OK[T](t) }

// use uses a home like a turn on the tree base, which leaves files in it.
func use(t *testing.T, p *repotest.Past, name string, leave map[string]string) *homes.Home {
	t.Helper()
	cs := p.CS
	s := ok[turnstone.Session](t)(cs.DB.Ensure(t.Context(), "s"))
	turn := ok[turnstone.Turn](t)(cs.DB.Start(t.Context(), session.StartTurn{Session: s.ID}))
	h := ok[*homes.Home](t)(homes.In(p.Repo).Open(t.Context(),
		homes.Request{Name: name, Turn: turn.ID, Timeout: time.Minute}, quiet))
	defer h.Close()
	b := ok[*store.Batch](t)(cs.Store.Begin(t.Context()))
	defer func() { _ = b.Close() }()
	base := treetest.Make(t, b, treetest.Texts(map[string]string{"/etc/x": "x",
		"/root/.profile": "template"})...)
	if err := b.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, release, err := h.Images(t.Context(), homes.Base{Root: base, Tree: base}, "/root")
	if err != nil {
		t.Fatal(err)
	}
	release()
	both := ok[turnstone.TreeRef](t)(h.Onto(t.Context(), b, base))
	if leave != nil {
		files := treetest.Texts(map[string]string{"/etc/x": "x"})
		for p, text := range leave {
			files = append(files, treetest.File{Path: "/root" + p, Data: text})
		}
		both = treetest.Make(t, b, files...)
	}
	back := ok[turnstone.TreeRef](t)(h.Leave(t.Context(), b, both, base))
	if back.Hash != base.Hash {
		t.Errorf("the state has the home's changes: %v, not %v", back, base)
	}
	if err := b.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	var head *turnstone.TurnID
	if parent := turn.Parent(); parent != "" {
		head = &parent
	}
	_, _, err = cs.DB.Finish(t.Context(), session.Finish{Turn: turn.ID, Result: "passed",
		MoveBranch: true, ExpectedHead: head, Home: h.Use(true)})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func names(t *testing.T, p *repotest.Past, ref turnstone.TreeRef) []string {
	t.Helper()
	var all []string
	err := tree.Walk(t.Context(), p.CS.Store, ref, "/", func(path string, e *tree.Entry) error {
		if e.Type == tree.File {
			all = append(all, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func list(t *testing.T, p *repotest.Past) []turnstone.HomeInfo {
	t.Helper()
	return ok[[]turnstone.HomeInfo](t)(homes.In(p.Repo).List(t.Context()))
}

// TestUse: a home has what its last user left, and its size is that of its files.
func TestUse(t *testing.T) {
	p := repotest.New(t)
	if h := use(t, p, "work", nil); h.Began != h.Ended || len(names(t, p, h.Ended)) != 0 {
		t.Errorf("a new home has %v", names(t, p, h.Ended))
	}
	use(t, p, "work", map[string]string{"/a": "12345", "/d/b": "1"})
	h := use(t, p, "work", map[string]string{"/a": "123", "/c": "12"})
	if got := names(t, p, h.Ended); !slices.Equal(got, []string{"/a", "/c"}) {
		t.Errorf("it has %v", got)
	}
	all := list(t, p)
	if len(all) != 1 || all[0].Bytes != 5 || all[0].FSHash != h.Ended.Hash || all[0].InUse {
		t.Errorf("%+v", all)
	}
	u := ok[*turnstone.Usage](t)(p.Repo.Usage(t.Context()))
	if u.Homes < 5 || u.Logical < 5 {
		t.Errorf("%+v", u)
	}
	rep := ok[*turnstone.GCReport](t)(p.Repo.GC(t.Context(), turnstone.GCRequest{}))
	if got := names(t, p, h.Began); !slices.Equal(got, []string{"/a", "/d/b"}) {
		t.Errorf("after gc, the state before has %v (%+v)", got, rep)
	}
	if err := homes.In(p.Repo).Remove(t.Context(), "work"); err != nil {
		t.Fatal(err)
	}
	ok[*turnstone.GCReport](t)(p.Repo.GC(t.Context(), turnstone.GCRequest{}))
	if has := ok[bool](t)(p.CS.Store.Has(t.Context(), h.Ended.Root)); has {
		t.Error("gc keeps a removed home")
	}
	if left, err := os.ReadDir(p.Repo.Dir.Path("homes")); err != nil || len(left) != 0 {
		t.Errorf("Remove left %v, %v", left, err)
	}
}

// TestDamage: a home whose data is lost is a problem that fsck finds, and gc then deletes nothing.
func TestDamage(t *testing.T) {
	p := repotest.New(t)
	none := turnstone.TreeRef{Root: turnstone.DigestBytes([]byte("x")),
		Hash: turnstone.DigestBytes([]byte("y"))}
	if err := p.CS.DB.AddHome(t.Context(), "work", none, 1); err != nil {
		t.Fatal(err)
	}
	rep := ok[*turnstone.FsckReport](t)(p.Repo.Fsck(t.Context()))
	if len(rep.Problems) == 0 || !strings.Contains(rep.Problems[0].Where, "home work") {
		t.Errorf("%+v", rep)
	}
	if _, err := p.Repo.GC(t.Context(), turnstone.GCRequest{}); err == nil {
		t.Error("gc ran")
	}
}

// TestOneUser waits for the home's turn, at most as long as its own turn may take.
func TestOneUser(t *testing.T) {
	p := repotest.New(t)
	all := homes.In(p.Repo)
	held := ok[*homes.Home](t)(all.Open(t.Context(),
		homes.Request{Name: "work", Turn: "t_1", Timeout: time.Minute}, quiet))
	use := homes.Request{Name: "work", Turn: "t_2", Timeout: time.Millisecond}
	var told string
	_, err := all.Open(t.Context(), use, func(what string) { told = what })
	if turnstone.KindOf(err) != turnstone.KindTimeout || !strings.Contains(told, "turn t_1") {
		t.Errorf("got %v, told %q", err, told)
	}
	if err := p.CS.DB.AddHome(t.Context(), "work", held.Began, 0); err != nil {
		t.Fatal(err)
	}
	if err := all.Remove(t.Context(), "work"); turnstone.KindOf(err) != turnstone.KindUnavailable ||
		!strings.Contains(err.Error(), "t_1") {
		t.Errorf("Remove while it is in use: %v", err)
	}
	if l := list(t, p); len(l) != 1 || !l[0].InUse || l[0].Turn != "t_1" {
		t.Errorf("%+v", l)
	}
	waiting, done := make(chan struct{}), make(chan error, 1)
	go func() {
		use.Timeout = time.Hour
		h, err := all.Open(context.WithoutCancel(t.Context()), use, func(string) { close(waiting) })
		h.Close()
		done <- err
	}()
	<-waiting
	held.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// An owner is a client of a server.
type owner string

func (owner) May(context.Context, turnstone.Session) error  { return nil }
func (owner) Made(context.Context, turnstone.Session) error { return nil }
func (o owner) Owner() string                               { return string(o) }

// TestOwners: clients have homes of the same name, and see, use and remove only their own.
func TestOwners(t *testing.T) {
	p := repotest.New(t)
	all := homes.In(p.Repo)
	a := session.WithAccess(t.Context(), owner("../key a"))
	b := session.WithAccess(t.Context(), owner("key b"))
	empty := ok[*homes.Home](t)(all.Open(a, homes.Request{Name: "work", Timeout: time.Second}, quiet))
	for _, ctx := range []context.Context{b, t.Context()} { // three homes, held together
		h := ok[*homes.Home](t)(all.Open(ctx, homes.Request{Name: "work", Timeout: time.Second}, quiet))
		defer h.Close()
	}
	if err := p.CS.DB.AddHome(a, "work", empty.Began, 7); err != nil {
		t.Fatal(err)
	}
	empty.Close()
	for who, ctx := range map[string]context.Context{"b": b, "the host's user": t.Context()} {
		if err := all.Has(ctx, "work"); turnstone.KindOf(err) != turnstone.KindNotFound {
			t.Errorf("%s: %v", who, err)
		}
		if err := all.Remove(ctx, "work"); turnstone.KindOf(err) != turnstone.KindNotFound {
			t.Errorf("%s: %v", who, err)
		}
	}
	if got := ok[[]turnstone.HomeInfo](t)(all.List(b)); len(got) != 0 {
		t.Errorf("b sees %+v", got)
	}
	if got := list(t, p); len(got) != 1 || got[0].Owner != "../key a" {
		t.Errorf("the host's user sees %+v", got)
	}
	if got := ok[[]turnstone.HomeInfo](t)(all.List(a)); len(got) != 1 || got[0].Bytes != 7 {
		t.Errorf("a sees %+v", got)
	}
	var outside []string
	_ = filepath.WalkDir(p.Repo.Dir.Root, func(path string, _ os.DirEntry, _ error) error {
		if strings.Contains(path, "key") {
			outside = append(outside, path)
		}
		return nil
	})
	if len(outside) > 0 {
		t.Errorf("names of files: %v", outside)
	}
	if err := all.Remove(a, "work"); err != nil {
		t.Error(err)
	}
}

// TestNames rejects names that are paths, and suggests the nearest home.
func TestNames(t *testing.T) {
	p := repotest.New(t)
	all := homes.In(p.Repo)
	use(t, p, "project", nil)
	for _, name := range []string{"../homes/project", "", ".", "a/b", "a\x00"} {
		_, err := all.Open(t.Context(), homes.Request{Name: name, Timeout: time.Second}, quiet)
		if turnstone.KindOf(err) != turnstone.KindInvalid ||
			turnstone.KindOf(all.Has(t.Context(), name)) != turnstone.KindInvalid {
			t.Errorf("%q: %v", name, err)
		}
	}
	err := all.Has(t.Context(), "projekt")
	if turnstone.KindOf(err) != turnstone.KindNotFound ||
		!strings.Contains(turnstone.HintOf(err), "did you mean project?") {
		t.Errorf("a mistake: %v, %s", err, turnstone.HintOf(err))
	}
}

// TestPlaces: $HOME may be a link to a directory, or missing, but nothing that is in no state.
func TestPlaces(t *testing.T) {
	p := repotest.New(t)
	cs := p.CS
	b := ok[*store.Batch](t)(cs.Store.Begin(t.Context()))
	base := treetest.Make(t, b, treetest.File{Path: "/var/me/"},
		treetest.File{Path: "/home", Target: "/var"}, treetest.File{Path: "/file", Data: "x"})
	if err := b.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	_ = b.Close()
	for dir, good := range map[string]bool{"/home/me": true, "/home/new": false, "/new/deep": true,
		"/file": false, "/file/x": false, "/proc/x": false, "/context": false, "/var/../": false,
		"/run": false, "/runner": true} {
		h := ok[*homes.Home](t)(homes.In(p.Repo).Open(t.Context(),
			homes.Request{Name: "work", Timeout: time.Second}, quiet))
		_, release, err := h.Images(t.Context(), homes.Base{Root: base, Tree: base}, dir)
		if (err == nil) != good || err != nil && turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Errorf("%s: %v", dir, err)
		}
		if err == nil {
			release()
		}
		h.Close()
	}
}

// disk makes the disk of a home as older programs did, with files in it.
func disk(t *testing.T, dir *repo.Repo, name string, files map[string]string, more ...string) string {
	t.Helper()
	program, err := exec.LookPath("mke2fs")
	if err != nil {
		if program, err = exec.LookPath("/sbin/mke2fs"); err != nil {
			t.Skip("no mke2fs")
		}
	}
	src := t.TempDir()
	for p, text := range files {
		path := filepath.Join(src, "home", p)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	folder := ok[string](t)(dir.Dir.MkdirAll("homes"))
	path := filepath.Join(folder, name+".ext4")
	args := append([]string{"-q", "-F", "-t", "ext4", "-b", "4096", "-J", "size=4", "-O",
		"^resize_inode,uninit_bg,sparse_super2", "-d", src}, more...)
	if out, err := exec.Command(program, append(args, path, "64M")...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

// TestDisk: the disk of an older program becomes a tree when it is used, and nothing of it is lost
// if it cannot.
func TestDisk(t *testing.T) {
	p := repotest.New(t)
	path := disk(t, p.Repo, "old", map[string]string{"a": "1", "d/b": "22"})
	if l := list(t, p); len(l) != 1 || !l[0].Disk || l[0].Name != "old" {
		t.Errorf("%+v", l)
	}
	h := use(t, p, "old", nil)
	if got := names(t, p, h.Began); !slices.Equal(got, []string{"/a", "/d/b"}) {
		t.Errorf("it has %v", got)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the disk: %v", err)
	}
	if l := list(t, p); len(l) != 1 || l[0].Disk || l[0].Bytes < 3 {
		t.Errorf("%+v", l)
	}
	for name, text := range map[string]string{"damaged": "no file system", "empty": ""} {
		path := filepath.Join(filepath.Dir(path), name+".ext4")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := homes.In(p.Repo).Open(t.Context(), homes.Request{Name: name, Timeout: time.Second}, quiet)
		if err == nil || turnstone.HintOf(err) == "" || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", name, err)
		}
		if b, err := os.ReadFile(path); err != nil || string(b) != text {
			t.Errorf("%s: %q, %v", name, b, err)
		}
		if err := homes.In(p.Repo).Remove(t.Context(), name); err != nil {
			t.Error(err)
		}
	}
}

// TestDiskWithAJournal: a disk whose machine was killed is repaired first, or stays as it is.
func TestDiskWithAJournal(t *testing.T) {
	p := repotest.New(t)
	path := disk(t, p.Repo, "old", map[string]string{"a": "1"})
	f := ok[*os.File](t)(os.OpenFile(path, os.O_RDWR, 0))
	defer f.Close()
	incompat := make([]byte, 1)
	at := int64(1024 + 0x60)
	if _, err := f.ReadAt(incompat, at); err != nil {
		t.Fatal(err)
	}
	set := func(b byte) error { _, err := f.WriteAt([]byte{b}, at); return err }
	if err := set(incompat[0] | 4); err != nil { // needs_recovery
		t.Fatal(err)
	}
	req := homes.Request{Name: "old", Turn: "t_1", Timeout: time.Second}
	_, err := homes.In(p.Repo).Open(t.Context(), req, quiet)
	if err == nil || !strings.Contains(turnstone.HintOf(err), "e2fsck -p") {
		t.Errorf("%v, %s", err, turnstone.HintOf(err))
	}
	if l := list(t, p); len(l) != 1 || !l[0].Disk {
		t.Errorf("%+v", l)
	}
	req.Repair = func(_ context.Context, at string) error {
		if at != path {
			t.Errorf("%s", at)
		}
		return set(incompat[0])
	}
	h := ok[*homes.Home](t)(homes.In(p.Repo).Open(t.Context(), req, quiet))
	defer h.Close()
	if got := names(t, p, h.Began); !slices.Equal(got, []string{"/a"}) {
		t.Errorf("it has %v", got)
	}
}

// TestLargest: a turn that makes a home larger than 32 GiB leaves it as it was; one that makes a home
// smaller, which was too large before, does not.
func TestLargest(t *testing.T) {
	const most = 32 << 30
	p := repotest.New(t)
	cs := p.CS
	use(t, p, "me", map[string]string{"/a": "12345"})
	s := ok[turnstone.Session](t)(cs.DB.Ensure(t.Context(), "s"))
	start := func() turnstone.Turn {
		return ok[turnstone.Turn](t)(cs.DB.Start(t.Context(), session.StartTurn{Session: s.ID}))
	}
	leave := func(bytes int64, text string) error {
		turn := start()
		now, _, err := cs.DB.Home(t.Context(), "me")
		if err != nil {
			t.Fatal(err)
		}
		// The largest homes are too large for a test: a new record says how large this one is.
		ok[bool](t)(cs.DB.RemoveHome(t.Context(), "me"))
		if _, _, err := cs.DB.Finish(t.Context(), session.Finish{Turn: turn.ID, Result: "passed",
			Home: &session.HomeUse{Turn: turn.ID, Name: "me", Began: now.Tree, Ended: now.Tree,
				Bytes: bytes, New: true}}); err != nil {
			t.Fatal(err)
		}
		h := ok[*homes.Home](t)(homes.In(p.Repo).Open(t.Context(),
			homes.Request{Name: "me", Turn: start().ID, Timeout: time.Minute}, quiet))
		defer h.Close()
		b := ok[*store.Batch](t)(cs.Store.Begin(t.Context()))
		defer func() { _ = b.Close() }()
		base := treetest.Make(t, b, treetest.Texts(map[string]string{"/root/.profile": "template"})...)
		if err := b.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		_, release, err := h.Images(t.Context(), homes.Base{Root: base, Tree: base}, "/root")
		if err != nil {
			t.Fatal(err)
		}
		release()
		ok[turnstone.TreeRef](t)(h.Onto(t.Context(), b, base))
		_, err = h.Leave(t.Context(), b, treetest.Make(t, b,
			treetest.Texts(map[string]string{"/root/a": text})...), base)
		if err != nil && h.Ended != (turnstone.TreeRef{}) {
			t.Error("a home that is refused has an end")
		}
		return err
	}
	if err := leave(most-1, "123456"); err != nil { // exactly the most
		t.Errorf("the largest home: %v", err)
	}
	err := leave(most, "123456")
	if turnstone.KindOf(err) != turnstone.KindExhausted || !strings.Contains(err.Error(), "32GiB is the most") ||
		turnstone.HintOf(err) == "" {
		t.Errorf("a home that is too large: %v", err)
	}
	for _, text := range []string{"12345", "1"} {
		if err := leave(most+10, text); err != nil {
			t.Errorf("a home that does not grow: %v", err)
		}
	}
}
