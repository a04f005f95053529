package main

import (
	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/cli"
)

// The output of --json is a type of the library, or one of these types. docs/json.md has the rules;
// docs/schemas has a schema of each, which a test generates from the types.

// A versionReport is the output of turn version.
type versionReport struct {
	Version string `json:"version"`
	Go      string `json:"go"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
}

// A checkReport is the output of turn check: all documents, including those with faults.
type checkReport struct {
	Documents []checked `json:"documents"`
}

// checked is one document.
type checked struct {
	File  string        `json:"file"`
	Steps []checkedStep `json:"steps"` // empty if there are faults
	// the grants by flags that a run on this host needs
	Needs []turnstone.Ask `json:"needs"`
	Error *cli.ErrorBody  `json:"error,omitempty"` // its faults
	// Manifest is what a run takes from a manifest; null: nothing.
	Manifest *usedManifest `json:"manifest,omitempty"`
	// Ignored are keys and attributes for other tools; absent: there are none.
	Ignored []document.Ignored `json:"ignored,omitempty"`
}

// usedManifest is what a document takes from a manifest.
type usedManifest struct {
	File string   `json:"file"`
	Keys []string `json:"keys"` // as in the manifest's sections, such as "image"
}

// An initReport is the output of turn init.
type initReport struct {
	File string `json:"file"` // the manifest that was written
}

type checkedStep struct {
	Name     string `json:"name"`
	Line     int    `json:"line"`
	Language string `json:"language"`
	Skip     bool   `json:"skip"`
}

// A headsReport is the output of turn log --heads.
type headsReport struct {
	Session turnstone.Session      `json:"session"`
	Heads   []turnstone.LoggedHead `json:"heads"` // oldest first
}

// A turnReport is the output of turn show.
type turnReport struct {
	*turnstone.TurnInfo
	Record *recordReport `json:"record"` // null for a running or interrupted turn
	// Trace is there with --commands.
	Trace *turnstone.TraceReport `json:"trace,omitempty"`
}

// A recordReport is a record with its timeout in milliseconds; the stored record has nanoseconds.
type recordReport struct {
	*turnstone.TurnRecord
	Timeout *struct{}        `json:"timeout,omitempty"` // hides the record's
	Limit   turnstone.Millis `json:"timeout_ms,omitzero"`
}

func newTurnReport(i *turnstone.TurnInfo) turnReport {
	r := turnReport{TurnInfo: i}
	if i.Record != nil {
		r.Record = &recordReport{TurnRecord: i.Record, Limit: turnstone.Millis(i.Record.Timeout)}
	}
	return r
}

// A copyReport is the output of turn cp.
type copyReport struct {
	Skipped []skipped `json:"skipped"` // omitted files
	More    int       `json:"skipped_more,omitempty"`
}

type skipped struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
}

// A sessionsReport is the output of turn session ls.
type sessionsReport struct {
	Sessions []turnstone.SessionInfo `json:"sessions"` // the last used session first
}
