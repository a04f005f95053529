package terminal

import (
	"io"
	"strings"
	"text/tabwriter"
)

// Table prints a row of cells for each value, in columns. Tabs divide the words of head; an empty
// head is not printed.
func Table[T any](w io.Writer, head string, all []T, row func(T) []any) {
	t := columns(w)
	if head != "" {
		Printf(t, "%s\n", own(head)) // with its tabs
	}
	for _, v := range all {
		cells := row(v)
		Printf(t, strings.Repeat("%v\t", max(0, len(cells)-1))+"%v\n", cells...)
	}
	_ = t.Flush() // w keeps its error
}

// List is Table, or with names only the first cell of each row.
func List[T any](w io.Writer, names bool, head string, all []T, row func(T) []any) {
	if !names {
		Table(w, head, all, row)
		return
	}
	for _, v := range all {
		Println(w, row(v)[0])
	}
}

// Fields prints pairs of a key and a value, in columns. fill calls line for each pair; a pair
// without a value is omitted.
func Fields(w io.Writer, fill func(line func(key, value string))) {
	t := columns(w)
	fill(func(key, value string) {
		if value != "" {
			Printf(t, "%s\t%s\n", key, value)
		}
	})
	_ = t.Flush() // w keeps its error
}

func columns(w io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(w, 0, 0, 2, ' ', 0) }
