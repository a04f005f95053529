package terminal

import (
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"turnstone.dev/turnstone/internal/terminal/terminaltest"
)

// TestTable checks that a row is one line with all cells in their columns.
func TestTable(t *testing.T) {
	row := func(s string) []any { return []any{s, len(s), strconv.Quote(s)} }
	var b strings.Builder
	List(&b, false, "NAME\tSIZE\tQUOTED", []string{"a", "a long\tname"}, row)
	want := "NAME         SIZE  QUOTED\na            1     \"a\"\na long name  11    \"a long\\tname\"\n"
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
	b.Reset()
	List(&b, true, "NAME\tSIZE\tQUOTED", []string{"a", "b"}, row)
	if b.String() != "a\nb\n" {
		t.Errorf("names: %q", b.String())
	}
	b.Reset()
	Fields(&b, func(line func(key, value string)) {
		line("key", "value")
		line("empty", "")
		line("k", "v")
	})
	if b.String() != "key  value\nk    v\n" {
		t.Errorf("fields: %q", b.String())
	}
}

// TestTableIsHarmless checks that no cell adds a line, or a sequence that a terminal obeys.
func TestTableIsHarmless(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cell := rapid.OneOf(rapid.String(), rapid.Just(terminaltest.Hostile))
		all := rapid.SliceOfN(rapid.SliceOfN(cell, 1, 4), 0, 4).Draw(t, "rows")
		names := rapid.Bool().Draw(t, "names")
		var b strings.Builder
		List(&b, names, "A\tB", all, func(cells []string) (row []any) {
			for _, c := range cells {
				row = append(row, c)
			}
			return row
		})
		terminaltest.Harmless(t, "table", b.String())
		want := len(all)
		if !names {
			want++
		}
		if got := strings.Count(b.String(), "\n"); got != want {
			t.Fatalf("%d lines of %d rows: %q", got, len(all), b.String())
		}
	})
}
