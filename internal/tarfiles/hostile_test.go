package tarfiles

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"pgregory.net/rapid"
)

// A copyTo is a stream and its destination, below the folder of all destinations.
type copyTo struct {
	dest   string
	stream []byte
}

// A ground is a folder with destinations and files of the user.
type ground struct {
	outer, dest string
	users       map[string]string // the user's links with their targets
}

// newGround creates a folder with a canary and a destination, which contains the user's earlier
// files.
func newGround(t testing.TB, users ...entry) *ground {
	t.Helper()
	outer, err := os.MkdirTemp("", "ground")
	if err != nil {
		t.Fatal(err)
	}
	g := &ground{outer: outer, dest: filepath.Join(outer, "dest"), users: map[string]string{}}
	g.must(t, os.MkdirAll(filepath.Join(outer, "canary", "a", "b"), 0o755))
	for _, name := range []string{"canary/a/b/c", "canary/a/x", ".env", "x", "a"} {
		g.must(t, os.WriteFile(filepath.Join(outer, name), []byte(name), 0o600))
	}
	g.must(t, os.Mkdir(g.dest, 0o755))
	g.must(t, os.WriteFile(filepath.Join(g.dest, ".env"), []byte("secret"), 0o600))
	for _, e := range users {
		at := filepath.Join(g.dest, e.Name)
		if parent, err := filepath.EvalSymlinks(filepath.Dir(filepath.Dir(at))); err == nil &&
			!strings.HasPrefix(filepath.Dir(at), parent) {
			continue // reached through another link, so under a different name
		}
		_ = os.MkdirAll(filepath.Dir(at), 0o755)
		if parent, err := filepath.EvalSymlinks(filepath.Dir(at)); err != nil ||
			parent != filepath.Dir(at) {
			continue
		}
		switch e.Typeflag {
		case tar.TypeDir:
			_ = os.MkdirAll(at, 0o755)
		case tar.TypeSymlink:
			if os.Symlink(e.Linkname, at) == nil {
				g.users[at] = e.Linkname
			}
		default:
			_ = os.WriteFile(at, []byte(e.body), 0o600)
		}
	}
	return g
}

func (g *ground) must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (g *ground) remove() {
	_ = filepath.WalkDir(g.outer, func(path string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() {
			_ = os.Chmod(path, 0o700)
		}
		return nil
	})
	_ = os.RemoveAll(g.outer)
}

// state describes everything except the entries below without.
func (g *ground) state(without string) map[string]string {
	all := map[string]string{}
	_ = filepath.WalkDir(g.outer, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		if path == without {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		what := d.Type().String()
		switch {
		case d.Type()&fs.ModeSymlink != 0:
			to, _ := os.Readlink(path)
			what += to
		case d.Type().IsRegular():
			b, _ := os.ReadFile(path)
			what += string(b)
		}
		all[path] = what
		return nil
	})
	return all
}

func changed(a, b map[string]string) (names []string) {
	for name := range a {
		if a[name] != b[name] {
			names = append(names, name)
		}
	}
	for name := range b {
		if _, there := a[name]; !there {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// check is the oracle: no copied link leads out of its top-level name, by its target and by the
// existing files, and writing through it changes nothing else.
func (g *ground) check(t interface {
	Helper()
	Errorf(string, ...any)
}) {
	t.Helper()
	tops, _ := os.ReadDir(g.dest)
	for _, top := range tops {
		at := filepath.Join(g.dest, top.Name())
		var links []string
		_ = filepath.WalkDir(at, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return nil
			}
			switch {
			case d.Type()&fs.ModeSymlink != 0:
				to, _ := os.Readlink(path)
				if mine, is := g.users[path]; !is || mine != to {
					links = append(links, path)
				}
			case !d.IsDir() && !d.Type().IsRegular():
				t.Errorf("%q is a %v", path, d.Type())
			}
			if i, err := d.Info(); err == nil && i.Mode()&(fs.ModeSetuid|fs.ModeSetgid) != 0 {
				t.Errorf("%q has the mode %v", path, i.Mode())
			}
			return nil
		})
		before := g.state(at)
		inside := func(path string) bool { return path == at || strings.HasPrefix(path, at+"/") }
		for _, l := range links {
			to, _ := os.Readlink(l)
			if filepath.IsAbs(to) || !inside(filepath.Join(filepath.Dir(l), to)) || l == at {
				t.Errorf("%q says %q", l, to)
			}
			if real, err := filepath.EvalSymlinks(l); err == nil && !inside(real) {
				t.Errorf("%q leads to %q", l, real)
			}
			_ = os.WriteFile(l, []byte("written through"), 0o600)
			_ = os.WriteFile(l+"/written", []byte("written through"), 0o600)
			_ = os.WriteFile(l+"/../written", []byte("written through"), 0o600)
		}
		// A link to the top-level folder itself has the same parent as the folder.
		after := g.state(at)
		delete(after, filepath.Join(g.dest, "written"))
		if diff := changed(before, after); len(diff) > 0 {
			t.Errorf("writing through %q changed %q", links, diff)
		}
		_ = os.Remove(filepath.Join(g.dest, "written"))
	}
}

// run makes the copies in sequence. Everything outside of the destinations is unchanged.
func (g *ground) run(t *testing.T, copies []copyTo) {
	before := g.state(g.dest)
	for _, c := range copies {
		_ = Unpack(t.Context(), bytes.NewReader(c.stream), filepath.Join(g.dest, c.dest),
			Any(), Limits{Entries: 40, Bytes: 1 << 20})
	}
	if diff := changed(before, g.state(g.dest)); len(diff) > 0 {
		t.Errorf("unpacking changed %q", diff)
	}
}

// Chains and order: a link's target may be created later, be replaced, or have existed before.
func TestLinksStayInside(t *testing.T) {
	d, f, l := dir, file, link
	for name, tt := range map[string]struct {
		users  []entry
		copies [][]entry
		want   []string // links of out/ that exist in the end
	}{
		"a neighbour": {nil,
			[][]entry{{d("out/"), l("out/report.csv", "../.env")}}, nil},
		"absolute": {nil, [][]entry{{d("out/"), l("out/l", "/etc/passwd")}}, nil},
		"a chain": {nil,
			[][]entry{{l("out/a", "b"), l("out/b", "..")}}, []string{"a"}},
		"a chain in a folder": {nil,
			[][]entry{{l("out/d/a", "b/.."), l("out/d/b", ".."), l("out/d/c", "b/../../.env")}},
			[]string{"d/b"}},
		"a folder that shrinks": {nil,
			[][]entry{{d("out/d/e/"), l("out/l", "d/e/../../../.env")},
				{l("out/d/e", "..")}}, []string{"d/e"}},
		"a folder replaced later": {nil,
			[][]entry{{d("out/d/"), d("out/d/e/"), l("out/d/e/l", "../../x"), l("out/s", "d/e/l")},
				{l("out/d/e2", "../..")}}, []string{"d/e/l", "s"}},
		"the users' own": {[]entry{l("out/etc", "../..")},
			[][]entry{{d("out/"), l("out/l", "etc/.env")}}, []string{"etc"}},
		"the users' own, later": {[]entry{l("out/sub/etc", "../../..")},
			[][]entry{{l("out/x", "y/etc/.env")}, {l("out/y", "sub")}}, []string{"sub/etc", "x"}},
		"the users' own, by folder": {[]entry{l("out/sub/etc", "../../..")},
			[][]entry{{l("out/x", "y/z/etc/.env")}, {l("out/y/z", "../sub")}},
			[]string{"sub/etc", "x"}},
		"beside the users' own": {[]entry{l("out/etc", "../..")},
			[][]entry{{f("out/d/x", ""), l("out/l", "d/x"), l("out/d/m", "../l")}},
			[]string{"d/m", "etc", "l"}},
		"in the users' own place": {[]entry{l("out/etc", "../..")},
			[][]entry{{l("out/a", "etc"), l("out/etc", "d")}}, []string{"a", "etc"}},
		"held back, then a file": {[]entry{l("out/etc", "../..")},
			[][]entry{{l("out/a", "b"), f("out/a", "x")}}, []string{"etc"}},
		"held back, twice": {[]entry{l("out/etc", "../..")},
			[][]entry{{l("out/a", "etc"), l("out/a", "b")}}, []string{"etc"}},
		"held back, then below it": {[]entry{l("out/etc", "../..")},
			[][]entry{{l("out/a/l", "../x"), l("out/a", "d/e")}}, []string{"a", "etc"}},
		"a long chain": {nil,
			[][]entry{append(chain(300), link("out/300", "x"))}, nil},
		"a long chain, users' own": {[]entry{l("out/etc", "../..")},
			[][]entry{append(chain(300), l("out/300", "etc/.env"))}, []string{"etc"}},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGround(t, tt.users...)
			defer g.remove()
			var copies []copyTo
			for _, entries := range tt.copies {
				copies = append(copies, copyTo{"", stream(t, entries...)})
			}
			for _, c := range copies {
				if err := Unpack(t.Context(), bytes.NewReader(c.stream),
					g.dest, Any(), Limits{}); err != nil {
					t.Error(err)
				}
			}
			var links []string
			for _, line := range list(t, filepath.Join(g.dest, "out")) {
				if name, _, is := strings.Cut(line, " -> "); is {
					links = append(links, name)
				}
			}
			slices.Sort(links)
			if name != "a long chain" && !slices.Equal(links, tt.want) {
				t.Errorf("links %q, want %q", links, tt.want)
			}
			g.check(t)
		})
	}
}

// chain returns a chain of n links.
func chain(n int) (all []entry) {
	for i := range n {
		all = append(all, link(fmt.Sprintf("out/%d", i), fmt.Sprint(i+1)))
	}
	return all
}

// There are few hostileNames, so that entries collide.
var (
	hostileNames   = []string{"a", "b", "c", "x", ".env", "A", "canary"}
	hostileTargets = []string{"..", "..", "a", "b", "c", "x", "t", ".", "",
		".env", "canary", "dest", "A"}
	hostileTops = []string{"t", "u", "T"}
)

// A chooser returns numbers below n.
type chooser func(n int) int

func (c chooser) of(list []string) string { return list[c(len(list))] }

func (c chooser) path() string {
	p := c.of(hostileTops)
	for range c(4) {
		p += "/" + c.of(hostileNames)
	}
	return p
}

func (c chooser) target(outer string) string {
	parts := []string{c.of(hostileTargets)}
	for range c(5) {
		parts = append(parts, c.of(hostileTargets))
	}
	to := strings.Join(parts, "/")
	switch c(12) {
	case 0:
		to = outer + "/" + to
	case 1:
		to += "/"
	}
	return to
}

func (c chooser) entry(outer string) entry {
	name := c.path()
	switch c(8) {
	case 0:
		e := file(name, "hostile")
		e.Mode = 0o6755
		return e
	case 1, 2:
		return dir(name + "/")
	case 3:
		return entry{tar.Header{Name: name, Typeflag: tar.TypeLink, Linkname: c.path()}, ""}
	}
	return link(name, c.target(outer))
}

// hostileCopies draws the user's earlier files and some copies in sequence.
func hostileCopies(t *testing.T, c chooser) {
	var users []entry
	for range c(4) {
		users = append(users, c.entry("/nowhere"))
	}
	g := newGround(t, users...)
	defer g.remove()
	var copies []copyTo
	for range 1 + c(3) {
		var entries []entry
		for range 1 + c(8) {
			entries = append(entries, c.entry(g.outer))
		}
		dest := ""
		if c(4) == 0 { // a single top-level name, which is renamed
			top := hostileTops[0]
			for i := range entries {
				_, rest, _ := strings.Cut(entries[i].Name, "/")
				entries[i].Name = strings.TrimSuffix("src/"+rest, "/")
				if entries[i].Typeflag == tar.TypeDir {
					entries[i].Name += "/"
				}
			}
			// the user's own path is followed
			if _, link := g.users[filepath.Join(g.dest, top)]; !link {
				dest = top
			}
		}
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, e := range entries {
			if w.WriteHeader(&e.Header) == nil {
				_, _ = w.Write([]byte(e.body))
			}
		}
		_ = w.Close()
		copies = append(copies, copyTo{dest, b.Bytes()})
	}
	g.run(t, copies)
	g.check(t)
	if t.Failed() {
		t.Logf("the user's: %q", g.users)
		for _, c := range copies {
			t.Logf("to %q:", c.dest)
			for r := tar.NewReader(bytes.NewReader(c.stream)); ; {
				h, err := r.Next()
				if err != nil {
					break
				}
				t.Logf("  %c %s -> %s", h.Typeflag, h.Name, h.Linkname)
			}
		}
	}
}

// TestHostileCopies: for any sequence of streams, no copied link leads out of its top-level name.
func TestHostileCopies(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		hostileCopies(t, func(n int) int { return rapid.IntRange(0, n-1).Draw(rt, "") })
		if t.Failed() {
			rt.FailNow()
		}
	})
}

// FuzzCopies is TestHostileCopies guided by code coverage.
func FuzzCopies(f *testing.F) {
	for seed := range 8 {
		f.Add(bytes.Repeat([]byte{byte(seed), 3, 7, 1, byte(seed * 5), 4, 6, 0, 2, 11}, 12))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		hostileCopies(t, func(n int) int {
			if len(b) == 0 {
				return 0
			}
			k := int(b[0]) % n
			b = b[1:]
			return k
		})
	})
}

// FuzzUnpack: no stream writes outside of its destination, creates anything but files, folders and
// links that stay inside, or exceeds the limits.
func FuzzUnpack(f *testing.F) {
	f.Add(stream(f, dir("a/"), file("a/b", "x"), link("a/l", "b"), file("a/b", "y")), false)
	f.Add(stream(f, link("l", "d"), dir("d/"), file("l/x", "x")), true)
	f.Add(stream(f, link("a", "."), link("a/b", ".."), file("a/b/../x", "x")), true)
	f.Add(stream(f, dir("t/"), link("t/b", "a"), link("t/a", "../.env")), true)
	f.Fuzz(func(t *testing.T, b []byte, rename bool) {
		g := newGround(t, link("t/etc", "../.."), file("t/a", "x"))
		defer g.remove()
		dest := ""
		if rename {
			dest = "new"
		}
		g.run(t, []copyTo{{dest, b}, {dest, b}})
		g.check(t)
	})
}

// Modes: the umask applies, set-ID bits are dropped, and existing folders keep their mode. A
// caller's own stream keeps its modes.
func TestModes(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o027))
	f, wide, bare := file("t/d/f", "x"), dir("t/d/"), dir("t/bare/")
	f.Mode, wide.Mode, bare.Mode = 0o6777, 0o3777, 0o055
	there, private := dir("t/there/"), file("t/private", "x")
	there.Mode, private.Mode = 0o777, 0o600
	b := stream(t, wide, f, bare, file("t/bare/x", ""), there, file("t/there/x", ""),
		private, file("t/made/x", ""))
	for _, trusted := range []bool{false, true} {
		d := t.TempDir()
		if err := os.MkdirAll(d+"/t/there", 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(d+"/t/there", 0o500); err != nil {
			t.Fatal(err)
		}
		if err := Unpack(t.Context(), bytes.NewReader(b), d, Any(), Limits{Trusted: trusted}); err != nil {
			t.Fatal(err)
		}
		want := map[string]fs.FileMode{"d/f": 0o750, "d": 0o750 | fs.ModeDir | fs.ModeSticky,
			"bare": 0o050 | fs.ModeDir, "there": 0o500 | fs.ModeDir, "private": 0o600,
			"made": 0o750 | fs.ModeDir}
		if trusted {
			want = map[string]fs.FileMode{"d/f": 0o777, "d": 0o777 | fs.ModeDir | fs.ModeSticky,
				"bare": 0o055 | fs.ModeDir, "there": 0o777 | fs.ModeDir, "private": 0o600,
				"made": 0o750 | fs.ModeDir}
		}
		for name, mode := range want {
			st, err := os.Lstat(filepath.Join(d, "t", name))
			if err != nil || st.Mode() != mode {
				t.Errorf("trusted %v, %s: mode %v, want %v: %v", trusted,
					name, st.Mode(), mode, err)
			}
		}
		_, _ = os.Chmod(d+"/t/bare", 0o700), os.Chmod(d+"/t/there", 0o700)
	}
}

// A file that is sparse at its source stays sparse for any read size.
func TestSparseInSmallReads(t *testing.T) {
	const size = 64 << 20
	b := stream(t, entry{tar.Header{Name: "f", Typeflag: tar.TypeReg, Mode: 0o644, Size: size},
		string(make([]byte, size))})
	d := t.TempDir()
	if err := Unpack(t.Context(), &smallReads{b, 33_001}, d, Any(), Limits{}); err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(d + "/f")
	if err != nil || st.Size() != size {
		t.Fatal(st, err)
	}
	if disk := st.Sys().(*syscall.Stat_t).Blocks * 512; disk > 64<<10 {
		t.Errorf("%d bytes of zeros take up %d on disk", size, disk)
	}
}

type smallReads struct {
	b    []byte
	most int
}

func (r *smallReads) Read(p []byte) (int, error) {
	n, err := bytes.NewReader(r.b).Read(p[:min(len(p), r.most)])
	r.b = r.b[n:]
	return n, err
}
