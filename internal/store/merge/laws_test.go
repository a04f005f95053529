package merge

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
)

// There are few names, so that the sides collide often.
var (
	drawPath = rapid.SampledFrom([]string{"a", "b", "c", "d", "d/a", "d/b", "d/e", "d/e/a", "e",
		"e/a", "e/b", "\xff", "d/e/\xfe"})
	drawText = rapid.Custom(func(t *rapid.T) string {
		switch rapid.IntRange(0, 5).Draw(t, "kind") {
		case 0:
			return ""
		case 1:
			return "\x00" + rapid.StringMatching("[a-c]{1,3}").Draw(t, "binary")
		}
		lines := rapid.SliceOfN(rapid.SampledFrom([]string{"one", "two", "three", "four", "five"}),
			0, 8).Draw(t, "lines")
		return string(join(lines, true))
	})
	drawThing = rapid.Custom(func(t *rapid.T) *thing {
		th := &thing{attr: tree.Attr{Type: tree.File, Mode: 0o644}}
		switch rapid.IntRange(0, 11).Draw(t, "type") {
		case 0:
			th.attr = tree.Attr{Type: tree.Symlink, Mode: 0o777,
				Target: rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "target")}
		case 1:
			th.attr = tree.Attr{Type: tree.Char, Mode: 0o644, Major: 1,
				Minor: uint32(rapid.IntRange(3, 5).Draw(t, "minor"))}
		case 2:
			th.attr.Type = tree.FIFO
		case 3:
			th.attr.Type, th.attr.Mode = tree.Dir, 0o755
		default:
			th.data = drawText.Draw(t, "data")
		}
		drawAttrs(t, th)
		return th
	})
)

func drawAttrs(t *rapid.T, th *thing) {
	switch rapid.IntRange(0, 9).Draw(t, "attr") {
	case 0:
		th.attr.Mode = uint32(rapid.SampledFrom([]int{0o700, 0o4755}).Draw(t, "mode"))
	case 1:
		th.attr.UID = uint32(rapid.IntRange(1, 2).Draw(t, "uid"))
	case 2:
		th.attr.GID = uint32(rapid.IntRange(1, 2).Draw(t, "gid"))
	case 3:
		th.attr.Xattrs = []tree.Xattr{{Name: "user.a",
			Value: []byte(rapid.SampledFrom([]string{"1", "2"}).Draw(t, "value"))}}
	case 4:
		th.attr.MTime.Sec = int64(rapid.IntRange(1, 5).Draw(t, "mtime"))
	}
}

// set puts th at p, replacing existing entries and files above.
func (m model) set(p string, th *thing) {
	for d := path.Dir(p); d != "."; d = path.Dir(d) {
		if m[d] != nil && m[d].attr.Type != tree.Dir {
			delete(m, d)
		}
	}
	m.remove(p)
	m[p] = th
}

func (m model) remove(p string) {
	maps.DeleteFunc(m, func(q string, _ *thing) bool {
		return q == p || strings.HasPrefix(q, p+"/")
	})
}

// copy copies a model; names of the same file stay together.
func (m model) copy() model {
	out := model{}
	files := map[*thing]*thing{}
	for p, th := range m {
		if files[th] == nil {
			c := *th
			files[th] = &c
		}
		out[p] = files[th]
	}
	return out
}

// relink numbers files by equality in the model: equal things at two names are the same file.
func (m model) relink() model {
	names := map[*thing]int{}
	for _, th := range m {
		names[th]++
	}
	n := 0
	for _, p := range slices.Sorted(maps.Keys(m)) {
		th := m[p]
		switch {
		case names[th] < 2:
			th.ino = 0
		case names[th] < 1<<20:
			n++
			th.ino, names[th] = n, 1<<20
		}
	}
	return m
}

// edit changes m in some places.
func (m model) edit(t *rapid.T, label string) model {
	m = m.copy()
	for range rapid.IntRange(0, 5).Draw(t, label) {
		all := slices.Sorted(maps.Keys(m))
		if len(all) == 0 || rapid.IntRange(0, 3).Draw(t, "new") == 0 {
			m.set(drawPath.Draw(t, "path"), drawThing.Draw(t, "thing"))
			continue
		}
		p := rapid.SampledFrom(all).Draw(t, "of")
		th := m[p]
		switch op := rapid.IntRange(0, 5).Draw(t, "op"); {
		case op == 0:
			m.remove(p)
		case op == 1 && th.attr.Type != tree.Dir:
			m.remove(p)
			m.set(drawPath.Draw(t, "to"), th)
		case op == 2 && th.attr.Type != tree.Dir:
			to := drawPath.Draw(t, "link")
			if !strings.HasPrefix(to, p+"/") && !strings.HasPrefix(p, to+"/") && to != p {
				m.set(to, th)
			}
		case op == 3:
			drawAttrs(t, th)
		case th.attr.Type == tree.File:
			th.data += drawText.Draw(t, "more")
		}
	}
	return m
}

// threeModels draws a base and two sides derived from it.
func threeModels(t *rapid.T) (base, ours, theirs model) {
	base = model{}
	for range rapid.IntRange(0, 6).Draw(t, "files") {
		base.set(drawPath.Draw(t, "path"), drawThing.Draw(t, "thing"))
	}
	base = base.edit(t, "edits")
	return base.relink(), base.edit(t, "ours").relink(), base.edit(t, "theirs").relink()
}

// law runs check on many drawn trees because rare cases have been wrong before.
func law(t *testing.T, check func(l *laws)) {
	one := func(rt *rapid.T) {
		l := &laws{T: rt, t: t, w: treetest.NewStore()}
		l.b, l.o, l.th = threeModels(rt)
		l.base, l.ours, l.theirs = l.b.put(t, l.w), l.o.put(t, l.w), l.th.put(t, l.w)
		l.b, l.o, l.th = load(t, l.w, l.base), load(t, l.w, l.ours), load(t, l.w, l.theirs)
		check(l)
	}
	for range 20 {
		rapid.Check(t, one)
	}
}

type laws struct {
	*rapid.T
	t                  *testing.T
	w                  *treetest.Store
	b, o, th           model
	base, ours, theirs turnstone.TreeRef
}

func (l *laws) merge(base, ours, theirs turnstone.TreeRef, opts Options) *Result {
	res, err := Trees(l.t.Context(), l.w, base, ours, theirs, opts)
	if err != nil {
		l.Fatal(err)
	}
	return res
}

func (l *laws) fail(format string, args ...any) {
	l.Fatalf("%s\n-- base\n%s\n-- ours\n%s\n-- theirs\n%s",
		fmt.Sprintf(format, args...), l.b, l.o, l.th)
}

func TestMergeWithItselfChangesNothing(t *testing.T) {
	law(t, func(l *laws) {
		if res := l.merge(l.base, l.ours, l.ours, Options{}); res.Tree != l.ours {
			l.fail("%v", describe(res.Conflicts))
		}
		if res := l.merge(turnstone.TreeRef{}, l.ours, l.ours, Options{}); res.Tree != l.ours {
			l.fail("without a base: %v", describe(res.Conflicts))
		}
	})
}

func TestMergeOfOneSideTakesIt(t *testing.T) {
	law(t, func(l *laws) {
		if res := l.merge(l.base, l.base, l.theirs, Options{}); res.Tree != l.theirs {
			l.fail("theirs: %v", describe(res.Conflicts))
		}
		if res := l.merge(l.base, l.ours, l.base, Options{}); res.Tree != l.ours {
			l.fail("ours: %v", describe(res.Conflicts))
		}
	})
}

// mirrored returns cs with exchanged sides.
func mirrored(cs []Conflict) []string {
	var out []string
	for _, c := range cs {
		c.Kind = mirrorOf(c.Kind)
		c.Ours, c.Theirs, c.OursPath, c.TheirsPath = c.Theirs, c.Ours, c.TheirsPath, c.OursPath
		switch c.Resolution {
		case turnstone.TookOurs:
			c.Resolution = turnstone.TookTheirs
		case turnstone.TookTheirs:
			c.Resolution = turnstone.TookOurs
		}
		out = append(out, whole(c))
	}
	slices.Sort(out)
	return out
}

func whole(c Conflict) string {
	e := func(e *tree.Entry) string {
		if e == nil {
			return "-"
		}
		return fmt.Sprintf("%v %s", e.Attr, e.Content.Digest.Short())
	}
	return fmt.Sprintf("%q %s %s %s %s (%s) %s (%s) %s (%s)", c.Path, c.Kind, c.Detail,
		c.Resolution, e(c.Base), c.BasePath, e(c.Ours), c.OursPath, e(c.Theirs), c.TheirsPath)
}

func TestOrderOfSidesDoesNotMatter(t *testing.T) {
	law(t, func(l *laws) {
		opts, swapped := Options{}, Options{}
		switch rapid.IntRange(0, 3).Draw(l.T, "options") {
		case 0:
			opts, swapped = Options{Default: turnstone.SideOurs},
				Options{Default: turnstone.SideTheirs}
		case 1:
			opts, swapped = Options{Paths: map[string]turnstone.Side{"/d": turnstone.SideOurs}},
				Options{Paths: map[string]turnstone.Side{"/d": turnstone.SideTheirs}}
		}
		one, two := l.merge(l.base, l.ours, l.theirs, opts),
			l.merge(l.base, l.theirs, l.ours, swapped)
		if one.Tree != two.Tree {
			l.fail("the trees differ:\n%s\n-- and\n%s",
				load(t, l.w, one.Tree), load(t, l.w, two.Tree))
		}
		for _, d := range [][2][]Conflict{{one.Conflicts, two.Conflicts},
			{one.Resolved, two.Resolved}} {
			var want []string
			for _, c := range d[1] {
				want = append(want, whole(c))
			}
			slices.Sort(want)
			if got := mirrored(d[0]); !slices.Equal(got, want) {
				l.fail("conflicts:\n%q\n%q", got, want)
			}
		}
	})
}

// touches reports whether a conflict is about p, or about a path above it.
func touches(cs []Conflict, p string) bool {
	return slices.ContainsFunc(cs, func(c Conflict) bool {
		for _, q := range []string{c.Path, c.BasePath, c.OursPath, c.TheirsPath} {
			if q == "/"+p || q != "" && strings.HasPrefix("/"+p, q+"/") {
				return true
			}
		}
		return slices.Contains(strings.Split(c.Detail, ", "), "/"+p)
	})
}

func TestNoFileIsSilentlyLost(t *testing.T) {
	law(t, func(l *laws) {
		opts := Options{Default: rapid.SampledFrom([]turnstone.Side{turnstone.SideNone,
			turnstone.SideOurs, turnstone.SideTheirs}).Draw(l.T, "default"),
			Markers: rapid.Bool().Draw(l.T, "markers")}
		res := l.merge(l.base, l.ours, l.theirs, opts)
		if res.Tree == (turnstone.TreeRef{}) {
			if len(res.Conflicts) == 0 || opts.Default != turnstone.SideNone {
				l.fail("no tree, and %d conflicts", len(res.Conflicts))
			}
			return
		}
		got := load(t, l.w, res.Tree)
		renamed := map[string]bool{}
		for _, r := range res.Renames {
			renamed[r.From[1:]] = true
		}
		for _, s := range []struct {
			side, other model
		}{{l.o, l.th}, {l.th, l.o}} {
			for p, th := range s.side {
				if got[p] != nil || th.attr.Type == tree.Dir ||
					touches(res.Resolved, p) || renamed[p] {
					continue
				}
				if s.other[p] != nil && s.other[p].attr.Type != tree.Dir {
					l.fail("%q was on both sides, and is not in\n%s", p, got)
				}
				if l.b[p] == nil || !l.b[p].same(th) {
					l.fail("%q was new or changed, and is not in\n%s", p, got)
				}
			}
		}
	})
}

// A change of a single side is taken from that side, and everything in the result comes from a
// side, or from a merge of lines.
func TestResultComesFromTheSides(t *testing.T) {
	law(t, func(l *laws) {
		res := l.merge(l.base, l.ours, l.theirs, Options{Default: turnstone.SideOurs})
		got := load(t, l.w, res.Tree)
		moved := map[string]string{}
		for _, r := range res.Renames {
			moved[r.To[1:]] = r.From[1:]
		}
		texts := map[string]bool{}
		for _, m := range []model{l.o, l.th} {
			for _, th := range m {
				texts[th.data] = true
			}
		}
		for p, th := range got {
			if th.attr.Type == tree.File && !texts[th.data] && !slices.Contains(res.Merged, "/"+p) {
				// a new name of a file whose lines were merged
				if !slices.ContainsFunc(res.Merged, func(q string) bool {
					return got[q[1:]] != nil && got[q[1:]].data == th.data
				}) {
					l.fail("the content of %q comes from nowhere: %q", p, th.data)
				}
			}
			_, follows := moved[p]
			if follows || touches(res.Resolved, p) || th.ino != 0 || th.attr.Type == tree.Dir {
				continue
			}
			if l.b[p].text(true) == l.th[p].text(true) && l.o[p].text(true) != th.text(true) {
				l.fail("only ours changed %q, and it is %s", p, th.text(true))
			}
			if l.b[p].text(true) == l.o[p].text(true) && l.th[p].text(true) != th.text(true) {
				l.fail("only theirs changed %q, and it is %s", p, th.text(true))
			}
		}
	})
}

func TestEnvironmentLaws(t *testing.T) {
	env := rapid.SliceOfN(rapid.SampledFrom([]string{"A=1", "A=2", "B=1", "B=", "C=x=y"}), 0, 4)
	rapid.Check(t, func(rt *rapid.T) {
		b, o, th := env.Draw(rt, "base"), env.Draw(rt, "ours"), env.Draw(rt, "theirs")
		sorted := func(env []string) []string {
			merged, _ := Env(env, env, env, Options{})
			return merged
		}
		if got, cs := Env(b, o, o, Options{}); !slices.Equal(got, sorted(o)) || len(cs) > 0 {
			rt.Fatalf("with itself: %q", got)
		}
		if got, cs := Env(b, b, th, Options{}); !slices.Equal(got, sorted(th)) || len(cs) > 0 {
			rt.Fatalf("one-sided: %q", got)
		}
		one, x := Env(b, o, th, Options{Default: turnstone.SideOurs})
		two, y := Env(b, th, o, Options{Default: turnstone.SideTheirs})
		if !slices.Equal(one, two) || len(x) != len(y) {
			rt.Fatalf("the order matters: %q and %q", one, two)
		}
		for _, c := range x {
			paths := map[string]turnstone.Side{c.Path: turnstone.SideTheirs}
			_, undecided := Env(b, o, th, Options{Paths: paths})
			if len(undecided) != len(x) {
				rt.Fatalf("%q decided: %d of %d", c.Path, len(undecided), len(x))
			}
		}
	})
}
