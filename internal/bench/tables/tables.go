// Package tables reads the markdown tables that the benchmarks print, checks them, and compares those of two builds.
package tables

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A Table is a table of a page.
type Table struct {
	Section string // the heading before it, without the substrate in parentheses
	Header  []string
	Rows    [][]string
}

// Parse returns the tables of a page. A line that is no row ends a table.
func Parse(page string) (all []Table) {
	section := ""
	var lines []string                               // of the table that has begun
	for line := range strings.Lines(page + "\n\n") { // an empty line ends the last one
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "|") {
			lines = append(lines, line)
			continue
		}
		if len(lines) > 1 && delimiter.MatchString(lines[1]) {
			t := Table{Section: section, Header: cells(lines[0])}
			for _, row := range lines[2:] {
				t.Rows = append(t.Rows, cells(row))
			}
			all = append(all, t)
		}
		lines = nil
		if title, ok := strings.CutPrefix(line, "## "); ok {
			section, _, _ = strings.Cut(title, " (")
		}
	}
	return all
}

var delimiter = regexp.MustCompile(`^\|[-:| ]*-[-:| ]*\|$`)

// cells returns the cells of a line. "\|" is part of a cell.
func cells(line string) (all []string) {
	const escaped = "\x00"
	line = strings.ReplaceAll(line, `\|`, escaped)
	for _, cell := range strings.Split(strings.TrimSuffix(strings.TrimPrefix(line, "|"), "|"), "|") {
		all = append(all, strings.ReplaceAll(strings.TrimSpace(cell), escaped, `\|`))
	}
	return all
}

// A Value is a number with its unit.
type Value struct {
	Number float64
	Unit   string // ms for durations, MiB for powers of 1024, else as it is written
}

// units have a factor to the unit of a Value.
var units = map[string]Value{
	"ns": {1e-6, "ms"}, "µs": {1e-3, "ms"}, "ms": {1, "ms"}, "s": {1e3, "ms"},
	"KiB": {1. / 1024, "MiB"}, "MiB": {1, "MiB"}, "GiB": {1024, "MiB"}, "TiB": {1 << 20, "MiB"},
	"kB": {1. / 1024, "MiB"}, // of /proc
	"MB": {1, "MB"}, "GB": {1e3, "MB"}, "MB/s": {1, "MB/s"}, "GB/s": {1e3, "MB/s"},
	"bytes": {1, "bytes"}, "files/s": {1, "files/s"}, "%": {1, "%"}, "times that": {1, "times that"}, "": {1, ""},
}

var (
	number = regexp.MustCompile(`^-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?`)
	// between two values: "19.9 MiB / 31.7 MiB", "0.52 s (1.00)", "2 of 3"
	between = regexp.MustCompile(`^(?:\s*[,/;()]\s*|\s+of\s+|\s+)+`)
)

// Values returns the numbers of a cell, and whether it has nothing else.
func Values(cell string) (all []Value, ok bool) {
	for rest := strings.ReplaceAll(cell, "**", ""); rest != ""; {
		digits := number.FindString(rest)
		n, err := strconv.ParseFloat(strings.ReplaceAll(digits, ",", ""), 64)
		if err != nil {
			return nil, false
		}
		rest = rest[len(digits):]
		unit := unitOf(strings.TrimPrefix(rest, " "))
		if unit != "" {
			rest = strings.TrimPrefix(rest, " ")[len(unit):]
		}
		u := units[unit]
		all = append(all, Value{n * u.Number, u.Unit})
		gap := between.FindString(rest)
		if rest != "" && gap == "" {
			return nil, false
		}
		rest = rest[len(gap):]
	}
	return all, len(all) > 0
}

// unitOf returns the unit at the beginning of text, or "".
func unitOf(text string) string {
	found := ""
	for name := range units {
		rest, ok := strings.CutPrefix(text, name)
		if ok && len(name) > len(found) && (rest == "" || strings.ContainsAny(rest[:1], " ,/;()")) {
			found = name
		}
	}
	return found
}

// median returns the middle of numbers, the mean of two for an even count.
func median(all []float64) float64 {
	s := slices.Sorted(slices.Values(all))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}
