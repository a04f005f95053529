package tables

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

var (
	// noNumber is how fmt prints what is no finite number.
	noNumber = regexp.MustCompile(`\bNaN\b|\bInf\b`)
	negative = regexp.MustCompile(`(?:^|[\s(|])-\d`)
	leading  = regexp.MustCompile(`^(?:\*\*)?-?\d`)
)

// words are the columns that have no numbers.
var words = []string{"goal", "content", "programs", "reason"}

// Problems returns what is wrong with the page that a benchmark printed: no table, a table without rows, a cell
// that is empty, that does not begin with a number where one belongs, or whose number is not finite or is negative.
// A cell "–" has no measurement; a row needs at least one. A difference may be negative: it is less than the noise.
func Problems(page string) (all []string) {
	for line := range strings.Lines(page) {
		if noNumber.MatchString(line) {
			all = append(all, "not a number: "+strings.TrimSpace(line))
		}
	}
	tables := Parse(page)
	if len(tables) == 0 {
		all = append(all, "no table")
	}
	for _, t := range tables {
		name := fmt.Sprintf("%s: table %q", t.Section, strings.Join(t.Header, " | "))
		if len(t.Rows) == 0 {
			all = append(all, name+": no rows")
		}
		for _, r := range t.Rows {
			for _, what := range t.problems(r) {
				all = append(all, fmt.Sprintf("%s: row %q: %s", name, strings.Join(r, " | "), what))
			}
		}
	}
	return all
}

func (t *Table) problems(row []string) (all []string) {
	if len(row) != len(t.Header) {
		return []string{fmt.Sprintf("%d cells, not %d", len(row), len(t.Header))}
	}
	numbers := 0
	for i, cell := range row {
		if i == 0 && cell == "" {
			all = append(all, "no name")
		}
		if i == 0 || slices.Contains(words, t.Header[i]) || cell == "–" {
			continue
		}
		if !leading.MatchString(cell) {
			all = append(all, fmt.Sprintf("%q is no number", cell))
		}
		if negative.MatchString(cell) && !isDifference(row[0]) && !isDifference(t.Header[i]) {
			all = append(all, fmt.Sprintf("%q is negative", cell))
		}
		numbers++
	}
	if numbers == 0 {
		all = append(all, "no number")
	}
	return all
}

// isDifference reports whether a row or column has what one measurement takes more than another.
func isDifference(name string) bool {
	return strings.HasPrefix(name, "added") || strings.HasPrefix(name, "more") || strings.Contains(name, "'s addition")
}
