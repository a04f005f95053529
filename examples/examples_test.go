// Package examples tests the example documents.
package examples

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/turntest"
)

// The expected outputs were computed from the same data by other means: SQLite for the CSV files
// (its avg, window functions and a least squares sum), jq for the GeoJSON file.
var examples = []struct {
	file  string
	steps []want
}{
	{"weather.md", []want{
		{"look", turnstone.StepPassed, `
date,precipitation,temp_max,temp_min,wind,weather
2012-01-01,0.0,12.8,5.0,4.7,drizzle
2012-01-02,10.9,10.6,2.8,4.5,rain
1461 days from 2012-01-01 to 2015-12-31, 0 missing, 0 twice
`},
		{"months", turnstone.StepPassed, `
month,high,low,rain
1,8.2,2.7,117
2,9.9,4.1,106
3,12.4,4.9,152
4,15.0,6.4,94
5,19.3,9.6,52
6,22.4,12.2,33
7,26.0,14.2,12
8,26.1,14.8,41
9,21.9,12.4,59
10,16.4,9.4,126
11,11.0,4.7,161
12,8.2,3.3,156
`},
		{"extremes", turnstone.StepPassed, `
hottest  2014-08-11  35.6
coldest  2013-12-07  -7.1
wettest  2015-03-15  55.9
windiest 2012-12-17  9.5
longest time without rain: 48 days, until 2012-09-08
`},
		{"trend", turnstone.StepPassed, `
2012  15.28
2013  16.06
2014  17.00
2015  17.43
slope +0.68 degrees a year
`},
		{"chart", turnstone.StepPassed, chart(
			"8.2", "9.9", "12.4", "15.0", "19.3", "22.4", "26.0", "26.1", "21.9", "16.4",
			"11.0", "8.2")},
	}},
	{"earthquakes.md", []want{
		{"read", turnstone.StepPassed, `
USGS All Earthquakes, Past Week - 1707 events
1679 earthquakes with a magnitude
`},
		{"strongest", turnstone.StepPassed, `
6.4	10.64	22km NNE of Hualian, Taiwan
6.1	191.19	35km S of Jarm, Afghanistan
6.1	11.97	21km NNE of Hualian, Taiwan
6	10	272km SSE of Sigave, Wallis and Futuna
6	10	265km NE of Scott Island Bank, Antarctica
`},
		{"b-value", turnstone.StepPassed, `
magnitude 0 to 1:  664
magnitude 1 to 2:  533
magnitude 2 to 3:  221
magnitude 3 to 4:   89
magnitude 4 to 5:   89
magnitude 5 to 6:   34
magnitude 6 to 7:    5
b = 0.80 from 85 quakes of 4.5 or more
`},
		{"regions", turnstone.StepPassed, `
739 CA
311 Alaska
174 Nevada
78 California
47 Puerto Rico
46 Hawaii
`},
		{"offline", turnstone.StepFailed, "\n"},
	}},
	{"co2.md", []want{
		{"shape", turnstone.StepPassed, "\n741 months, 1958-03-01 to 2020-04-01\n"},
		{"season", turnstone.StepPassed, `
01 +0.05
02 +0.69
03 +1.41
04 +2.56
05 +3.10
06 +2.34
07 +0.74
08 -1.40
09 -3.20
10 -3.31
11 -2.07
12 -0.85
`},
		{"words", turnstone.StepPassed, "\nThe peak is in May, the low in October.\n"},
		{"growth", turnstone.StepPassed, `
1960s  0.86 ppm a year
1970s  1.30 ppm a year
1980s  1.56 ppm a year
1990s  1.55 ppm a year
2000s  1.94 ppm a year
2010s  2.48 ppm a year
`},
		{"marks", turnstone.StepPassed, `
320 1964-08-01
340 1981-03-01
360 1995-02-01
380 2005-08-01
400 2015-04-01
`},
		{"future", turnstone.StepSkipped, "\n"},
	}},
	{"nodejs.md", []want{
		{"kinds", turnstone.StepPassed, `
drizzle  53
fog      101
rain     641
snow     26
sun      640
`},
		{"hot", turnstone.StepPassed, "\n" + `{"2012":8,"2013":15,"2014":17,"2015":23}` + "\n"},
	}},
	{"claude-code.md", []want{
		{"version", turnstone.StepPassed, "\n2.1.112 (Claude Code)\n"},
		{"no-key", turnstone.StepFailed, "\n"},
	}},
}

// want is a step's expected end. Its output begins with a newline that is not part of it, so that
// the table is readable.
type want struct {
	name   string
	status turnstone.Status
	stdout string
}

// chart draws the chart of weather.md: half a degree for each #.
func chart(highs ...string) string {
	var b strings.Builder
	b.WriteByte('\n')
	for i, h := range highs {
		halves := 0
		for _, c := range h {
			if c != '.' {
				halves = halves*10 + int(c-'0')
			}
		}
		fmt.Fprintf(&b, "%2d %5s %s\n", i+1, h, strings.Repeat("#", halves/5))
	}
	return b.String()
}

func TestExamples(t *testing.T) {
	h := turntest.Home(t)
	for _, ex := range examples {
		t.Run(ex.file, func(t *testing.T) {
			turn := run(t, h, ex.file)
			if turn.Result != turnstone.ResultPassed {
				t.Errorf("result %s: %s", turn.Result, turn.Error)
			}
			if len(turn.Steps) != len(ex.steps) {
				t.Fatalf("%d steps, want %d", len(turn.Steps), len(ex.steps))
			}
			for i, step := range turn.Steps {
				w := ex.steps[i]
				if step.Name != w.name || step.Status != w.status {
					t.Errorf("step %s is %s (%s), want %s to be %s\n%s", step.Name, step.Status,
						step.Note, w.name, w.status, step.Stderr)
				}
				if got, want := step.Stdout, w.stdout[1:]; got != want {
					t.Errorf("step %s printed\n%s\nwant\n%s", step.Name, got, want)
				}
			}
			checkReceipt(t, ex.file, turn)
		})
	}
}

// checkReceipt checks that the receipt is a document with the same steps.
func checkReceipt(t *testing.T, name string, turn *turnstone.TurnReport) {
	t.Helper()
	doc, err := document.Parse(name, []byte(turn.Receipt))
	if err != nil {
		t.Fatalf("the receipt is no document: %v", err)
	}
	if len(doc.Steps) != len(turn.Steps) {
		t.Errorf("the receipt has %d steps, want %d", len(doc.Steps), len(turn.Steps))
	}
}

func run(t *testing.T, h *statedir.Dir, file string) *turnstone.TurnReport {
	t.Helper()
	src, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := document.Parse(file, src)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 12*time.Minute)
	defer cancel()
	x, err := executor.Open(ctx, executor.Options{Dir: h.Root})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = x.Close() }()
	turn, err := x.Run(ctx, executor.Request{Document: doc, Dir: "."}, watch{t})
	if err != nil {
		t.Fatalf("%v (%s)", err, turnstone.HintOf(err))
	}
	return turn
}

// watch logs the running steps.
type watch struct{ t *testing.T }

func (w watch) Preparing(what string)                             { w.t.Log(what) }
func (w watch) StepStarted(s *document.Step)                      { w.t.Logf("step %s", s.Name) }
func (watch) StepOutput(*document.Step, turnstone.Stream, []byte) {}
func (w watch) StepFinished(s *document.Step, r turnstone.StepReport) {
	w.t.Logf("step %s: %s, %d ms", s.Name, r.Status, r.Millis)
}
