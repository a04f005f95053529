package turnstone

import "fmt"

// A TimesReport compares the runs of a turn that ran several times. Only the first run is in a
// session.
type TimesReport struct {
	Asked int `json:"asked"` // number of requested runs; the last run is the first that differs
	// Same reports that all requested runs took place, and that nothing differs: results, outputs,
	// files, environment and working directory.
	Same       bool           `json:"same"`
	Runs       []RunReport    `json:"runs"`
	Difference *RunDifference `json:"difference,omitempty"` // the first one; absent: none
}

// A RunReport is one of several runs of a turn.
type RunReport struct {
	ID     TurnID `json:"id"`
	Result Result `json:"result"`
	FSHash Digest `json:"fs_hash,omitempty"`
	Millis int64  `json:"duration_ms"`
}

// A RunDifference is the first difference between the first run of a turn and another run. Exactly
// one of Step, File and What says where it is, or Step with Stream or What.
type RunDifference struct {
	Run    int    `json:"run"`              // number of the other run, from 2
	Step   string `json:"step,omitempty"`   // name of the step
	Stream string `json:"stream,omitempty"` // "stdout" or "stderr", of the step
	Line   int    `json:"line,omitempty"`   // of the stream, from 1
	File   string `json:"file,omitempty"`   // path in the state
	// What differs: "result", "status", "exit code", "environment NAME", "working directory"; of a
	// file "only in the first run", "only in the other run", "differs".
	What  string `json:"what,omitempty"`
	First string `json:"first,omitempty"` // the value, or the line, in the first run; may be cut
	Other string `json:"other,omitempty"` // in the other run
}

// String returns a line of text.
func (d *RunDifference) String() string {
	where := d.What
	switch {
	case d.Stream != "":
		where = fmt.Sprintf("step %s, %s, line %d", d.Step, d.Stream, d.Line)
	case d.Step != "":
		where = fmt.Sprintf("step %s, %s", d.Step, d.What)
	case d.File != "":
		return fmt.Sprintf("%s: %s", d.File, d.What)
	}
	return fmt.Sprintf("%s: %q in run 1, %q in run %d", where, d.First, d.Other, d.Run)
}
