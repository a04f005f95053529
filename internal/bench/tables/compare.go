package tables

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// A Point names a number of a page.
type Point struct {
	Section     string
	Row, Column string
	header      string
	// The places of the table among those with the same header, of the row among those with the same name, and of
	// the number in its cell.
	table, row, value int
}

// Points returns the numbers of a page by their points, and the points in the page's order. Columns with goals are
// left out.
func Points(page string) (order []Point, of map[Point]Value) {
	of = map[Point]Value{}
	seen := map[string]int{}
	for _, t := range Parse(page) {
		header := strings.Join(t.Header, "|")
		seen[t.Section+header]++
		rows := map[string]int{}
		for _, r := range t.Rows {
			rows[r[0]]++
			for i := 1; i < min(len(r), len(t.Header)); i++ {
				values, ok := Values(r[i])
				if !ok || strings.HasPrefix(t.Header[i], "goal") {
					continue
				}
				for k, v := range values {
					p := Point{Section: t.Section, Row: r[0], Column: t.Header[i],
						header: header, table: seen[t.Section+header], row: rows[r[0]], value: k}
					order, of[p] = append(order, p), v
				}
			}
		}
	}
	return order, of
}

// A Ratio compares a number of two builds.
type Ratio struct {
	Point
	Unit      string
	Base, Now float64 // medians
	// The ratios now : base of the rounds. They mean nothing, and are 0, if a number of base is not positive.
	Median, Min, Max float64
}

// Compare compares the pages of two builds, which measured one after another in each round. It returns the
// numbers that both have in at least one round, in the order of now's.
func Compare(base, now []string) (all []Ratio) {
	var order []Point
	befores, afters := map[Point][]float64{}, map[Point][]float64{}
	units := map[Point]string{}
	for i := range min(len(base), len(now)) {
		_, before := Points(base[i])
		points, after := Points(now[i])
		for _, p := range points {
			b, ok := before[p]
			if unit, known := units[p]; !ok || b.Unit != after[p].Unit || known && unit != b.Unit {
				continue
			}
			if units[p] = b.Unit; len(befores[p]) == 0 {
				order = append(order, p)
			}
			befores[p], afters[p] = append(befores[p], b.Number), append(afters[p], after[p].Number)
		}
	}
	for _, p := range order {
		all = append(all, ratio(p, units[p], befores[p], afters[p]))
	}
	return all
}

func ratio(p Point, unit string, before, after []float64) Ratio {
	r := Ratio{Point: p, Unit: unit, Base: median(before), Now: median(after)}
	if slices.Min(before) <= 0 {
		return r
	}
	ratios := make([]float64, len(before))
	for i := range before {
		ratios[i] = after[i] / before[i]
	}
	r.Median, r.Min, r.Max = median(ratios), slices.Min(ratios), slices.Max(ratios)
	return r
}

// Print prints ratios as one table.
func Print(w io.Writer, all []Ratio) error {
	var b strings.Builder
	b.WriteString("| part | what | column | base | now | now : base | from, to |\n|---|---|---|---|---|---|---|\n")
	for _, r := range all {
		section, column := r.Section, r.Column
		if r.table > 1 {
			section = fmt.Sprintf("%s (%d)", section, r.table)
		}
		if r.value > 0 {
			column = strings.TrimSpace(fmt.Sprintf("%s (%d)", column, r.value+1))
		}
		quotient, span := "–", "–"
		if r.Median > 0 {
			quotient, span = fmt.Sprintf("**%.2f**", r.Median), fmt.Sprintf("%.2f, %.2f", r.Min, r.Max)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s |\n", section, r.Row, column, format(r.Base, r.Unit),
			format(r.Now, r.Unit), quotient, span)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// format writes a number with at least three digits.
func format(n float64, unit string) string {
	places := 0
	for limit := 100.; places < 3 && n < limit && n > -limit; limit /= 10 {
		places++
	}
	return strings.TrimSpace(fmt.Sprintf("%.*f %s", places, n, unit))
}
