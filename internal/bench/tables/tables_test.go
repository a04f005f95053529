package tables

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
)

const page = `
## Start (gvisor (systrap))

Some text.

| | p50 | p99 | goal |
|---|---|---|---|
| floor: tar \| zstd | 84.0 ms | 1.5 s | 2 ms |
| ratio (goal: 1.5) | **2.09** | – | |

**warm**: p50 3 ms

| phase | p50 |
|---|---|
| keep | 4.0 ms |

| phase | p50 |
|---|---|
| keep | 8.0 ms |

| no table

## Fleet
| what | |
|---|---|
| nodes | 7 of 9 |`

func TestParse(t *testing.T) {
	want := []Table{
		{"Start", []string{"", "p50", "p99", "goal"}, [][]string{{`floor: tar \| zstd`, "84.0 ms", "1.5 s", "2 ms"},
			{"ratio (goal: 1.5)", "**2.09**", "–", ""}}},
		{"Start", []string{"phase", "p50"}, [][]string{{"keep", "4.0 ms"}}},
		{"Start", []string{"phase", "p50"}, [][]string{{"keep", "8.0 ms"}}},
		{"Fleet", []string{"what", ""}, [][]string{{"nodes", "7 of 9"}}},
	}
	if got := Parse(page); !reflect.DeepEqual(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
	for _, text := range []string{"", "no table", "| a | b |", "| a |\n| b |\n", "## x\n|---|"} {
		if got := Parse(text); got != nil {
			t.Errorf("%q has tables: %q", text, got)
		}
	}
}

func TestValues(t *testing.T) {
	for cell, want := range map[string]string{
		"84.0 ms":                 "[{84 ms}]",
		"1.234s":                  "[{1234 ms}]",
		"12.5 µs":                 "[{0.0125 ms}]",
		"**1.39**":                "[{1.39 }]",
		"5,064 MB/s":              "[{5064 MB/s}]",
		"1.2 GB/s":                "[{1200 MB/s}]",
		"19.5 MiB / 31 MiB":       "[{19.5 MiB} {31 MiB}]",
		"512 KiB":                 "[{0.5 MiB}]",
		"0.52 s (1.00)":           "[{520 ms} {1 }]",
		"3,034 (0.82)":            "[{3034 } {0.82 }]",
		"29, 25.5 MiB":            "[{29 } {25.5 MiB}]",
		"7 of 9":                  "[{7 } {9 }]",
		"2.9 times that":          "[{2.9 times that}]",
		"0.42 s, 0.04 GB/s":       "[{420 ms} {40 MB/s}]",
		"10,052 files/s":          "[{10052 files/s}]",
		"-0.3 ms":                 "[{-0.3 ms}]",
		"26400.0 ms (41 MB/s)":    "[{26400 ms} {41 MB/s}]",
		"16777216 bytes":          "[{1.6777216e+07 bytes}]",
		"88708 kB":                "[{86.62890625 MiB}]",
		"–":                       "",
		"":                        "",
		"yes":                     "",
		"at most 1.50":            "",
		"3 bytes, sha256:00":      "",
		"1x":                      "",
		"12 parsecs":              "",
		"NaN":                     "",
		"8.3: etcd 2.1, server 6": "",
	} {
		got, ok := Values(cell)
		if text := fmt.Sprint(got); ok != (want != "") || ok && text != want {
			t.Errorf("%q: %s, %t; want %s", cell, text, ok, want)
		}
	}
}

func TestPoints(t *testing.T) {
	order, of := Points(page)
	var got []string
	for _, p := range order {
		got = append(got, fmt.Sprintf("%s, %d: %s, %s, %d: %v", p.Section, p.table, p.Row, p.Column, p.value, of[p]))
	}
	want := []string{`Start, 1: floor: tar \| zstd, p50, 0: {84 ms}`,
		`Start, 1: floor: tar \| zstd, p99, 0: {1500 ms}`, "Start, 1: ratio (goal: 1.5), p50, 0: {2.09 }", "Start, 1: keep, p50, 0: {4 ms}", "Start, 2: keep, p50, 0: {8 ms}",
		"Fleet, 1: nodes, , 0: {7 }", "Fleet, 1: nodes, , 1: {9 }"}
	if !slices.Equal(got, want) {
		t.Errorf("got %s\nwant %s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// of returns a page with the rows of one table.
func of(rows ...string) string {
	return "## Start (x)\n\n| | p50 |\n|---|---|\n" + strings.Join(rows, "\n") + "\n"
}

func TestCompare(t *testing.T) {
	for name, tc := range map[string]struct {
		base, now []string
		want      []string
	}{
		"medians of pairs": {
			[]string{of("| a | 10 ms |"), of("| a | 20 ms |"), of("| a | 40 ms |")},
			[]string{of("| a | 20 ms |"), of("| a | 10 ms |"), of("| a | 40 ms |")},
			[]string{"| Start | a | p50 | 20.0 ms | 20.0 ms | **1.00** | 0.50, 2.00 |"}},
		"an even number of rounds": {
			[]string{of("| a | 1 s |"), of("| a | 2 s |")}, []string{of("| a | 1500 ms |"), of("| a | 2 s |")},
			[]string{"| Start | a | p50 | 1500 ms | 1750 ms | **1.25** | 1.00, 1.50 |"}},
		"rows that only one has": {
			[]string{of("| a | 1 |", "| old | 1 |")}, []string{of("| new | 1 |", "| a | 2 |")},
			[]string{"| Start | a | p50 | 1.00 | 2.00 | **2.00** | 2.00, 2.00 |"}},
		"rows with the same name": {
			[]string{of("| a | 1 |", "| a | 10 |")}, []string{of("| a | 1 |", "| a | 30 |")},
			[]string{"| Start | a | p50 | 1.00 | 1.00 | **1.00** | 1.00, 1.00 |",
				"| Start | a | p50 | 10.0 | 30.0 | **3.00** | 3.00, 3.00 |"}},
		"several numbers, and several tables": {
			[]string{of("| a | 1 (2) |") + of("| a | 4 |")}, []string{of("| a | 2 (2) |") + of("| a | 5 |")},
			[]string{"| Start | a | p50 | 1.00 | 2.00 | **2.00** | 2.00, 2.00 |",
				"| Start | a | p50 (2) | 2.00 | 2.00 | **1.00** | 1.00, 1.00 |",
				"| Start (2) | a | p50 | 4.00 | 5.00 | **1.25** | 1.25, 1.25 |"}},
		"no ratio to nothing": {
			[]string{of("| a | 0.0 ms |", "| b | -2 ms |")}, []string{of("| a | 1 ms |", "| b | 1 ms |")},
			[]string{"| Start | a | p50 | 0.000 ms | 1.00 ms | – | – |",
				"| Start | b | p50 | -2.00 ms | 1.00 ms | – | – |"}},
		"a round that lacks a row": {
			[]string{of("| a | 1 |"), of("| a | – |")}, []string{of("| a | 3 |"), of("| a | 2 |")},
			[]string{"| Start | a | p50 | 1.00 | 3.00 | **3.00** | 3.00, 3.00 |"}},
		"another unit": {[]string{of("| a | 1 ms |")}, []string{of("| a | 1 MiB |")}, nil},
		"nothing":      {nil, []string{of("| a | 1 |")}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var b strings.Builder
			if err := Print(&b, Compare(tc.base, tc.now)); err != nil {
				t.Fatal(err)
			}
			rows := strings.Split(strings.TrimSpace(b.String()), "\n")[2:]
			if !slices.Equal(rows, tc.want) && len(rows)+len(tc.want) > 0 {
				t.Errorf("got %s\nwant %s", strings.Join(rows, "\n"), strings.Join(tc.want, "\n"))
			}
		})
	}
}

func TestProblems(t *testing.T) {
	for name, tc := range map[string]struct {
		page string
		want []string // parts of the problems
	}{
		"fine": {page, nil},
		"a row with a cell that has no measurement": {"|a|b|c|\n|-|-|-|\n|x|–|1|", nil},
		"no table":                  {"## Start\n", []string{"no table"}},
		"no rows":                   {"| a | b |\n|---|---|\n", []string{"no rows"}},
		"an empty cell":             {of("| a | |"), []string{`"" is no number`}},
		"a word":                    {of("| a | fast |"), []string{`"fast" is no number`}},
		"a cell too few":            {of("| a |"), []string{"1 cells, not 2"}},
		"no name":                   {of("| | 1 |"), []string{"no name"}},
		"no measurement":            {of("| a | – |"), []string{"no number"}},
		"NaN":                       {of("| a | 1 (NaN) |"), []string{"not a number"}},
		"infinite, outside a table": {of("| a | 1 |") + "\nserved in +Inf s", []string{"not a number"}},
		"infinite":                  {of("| a | +Inf |"), []string{"not a number", "is no number"}},
		"a wrong verb":              {of("| a | %!f(BADINDEX) |"), []string{"is no number"}},
		"negative":                  {of("| a | -1 ms |"), []string{"is negative"}},
		"negative, the second":      {of("| a | 1 ms (-2) |"), []string{"is negative"}},
		"a negative difference":     {of("| more | -1 ms |", "| the claim's addition | -1 ms |"), nil},
	} {
		t.Run(name, func(t *testing.T) {
			got := Problems(tc.page)
			if len(got) != len(tc.want) {
				t.Fatalf("got %q", got)
			}
			for i, part := range tc.want {
				if !strings.Contains(got[i], part) {
					t.Errorf("%q is not about %q", got[i], part)
				}
			}
		})
	}
}
