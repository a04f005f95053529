package merge

import (
	"os"
	"slices"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
)

// A mergeCase is a row of the table in docs/merge.md, by its name.
type mergeCase struct {
	name               string
	base, ours, theirs string
	opts               Options
	want               string   // the merged tree; empty if there are conflicts
	conflicts          []string // "path kind"
	resolved           []string // "path kind how"
	renames            []string // "from to side"
}

func describe(cs []Conflict) []string {
	var out []string
	for _, c := range cs {
		s := strings.TrimPrefix(c.Path, "/") + " " + string(c.Kind)
		if c.Resolution != "" {
			s += " " + string(c.Resolution)
		}
		out = append(out, s)
	}
	return out
}

func renames(rs []turnstone.MergeRename) []string {
	var out []string
	for _, r := range rs {
		out = append(out, r.From[1:]+" "+r.To[1:]+" "+r.Side)
	}
	return out
}

func (c mergeCase) run(t *testing.T, base, ours, theirs model) *Result {
	t.Helper()
	w := treetest.NewStore()
	b := turnstone.TreeRef{}
	if base != nil {
		b = base.put(t, w)
	}
	res, err := Trees(t.Context(), w, b, ours.put(t, w), theirs.put(t, w), c.opts)
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	if res.Tree != (turnstone.TreeRef{}) {
		got = load(t, w, res.Tree).String()
	}
	want := parse(t, c.want).String()
	if len(c.conflicts) > 0 {
		want = ""
	}
	if got != want {
		t.Errorf("the tree is\n%s\nwant\n%s", got, want)
	}
	return res
}

func TestCases(t *testing.T) {
	for _, c := range mergeCases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var base model
			if c.base != "none" {
				base = parse(t, c.base)
			}
			ours, theirs := parse(t, c.ours), parse(t, c.theirs)
			res := c.run(t, base, ours, theirs)
			for _, d := range []struct {
				what      string
				got, want []string
			}{
				{"conflicts", describe(res.Conflicts), c.conflicts},
				{"resolved", describe(res.Resolved), c.resolved},
				{"renames", renames(res.Renames), c.renames},
			} {
				if !slices.Equal(d.got, d.want) {
					t.Errorf("%s: %q, want %q", d.what, d.got, d.want)
				}
			}
			if c.opts.Default == turnstone.SideNone && c.opts.Paths == nil && !c.opts.Markers {
				mirror := c.run(t, base, theirs, ours)
				var got []string
				for _, x := range mirror.Conflicts {
					x.Kind = mirrorOf(x.Kind)
					got = append(got, describe([]Conflict{x})...)
				}
				slices.Sort(got)
				if want := slices.Sorted(slices.Values(c.conflicts)); !slices.Equal(got, want) {
					t.Errorf("with the sides exchanged: %q, want %q", got, want)
				}
			}
		})
	}
}

// The table in the documentation and the cases are the same.
func TestCasesAreDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../../docs/merge.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(doc), "| case |")
	if !ok {
		t.Fatal("there is no table of cases")
	}
	var rows []string
	for line := range strings.SplitSeq(table, "\n") {
		if cells := strings.Split(line, "|"); strings.HasPrefix(line, "| ") {
			rows = append(rows, strings.TrimSpace(cells[1]))
		}
	}
	var names []string
	for _, c := range mergeCases {
		names = append(names, c.name)
	}
	for _, n := range names {
		if !slices.Contains(rows, n) {
			t.Errorf("the case %q is not in docs/merge.md", n)
		}
	}
	for _, r := range rows {
		if !slices.Contains(names, r) {
			t.Errorf("the row %q of docs/merge.md has no case", r)
		}
	}
	if n := len(slices.Compact(slices.Sorted(slices.Values(rows)))); n != len(rows) || n == 0 {
		t.Errorf("%d rows, %d names", len(rows), n)
	}
}
