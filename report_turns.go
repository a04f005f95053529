package turnstone

import "time"

// A ReplayReport compares a turn's new run with its first run.
type ReplayReport struct {
	Of     TurnID      `json:"of"`
	Number int         `json:"number"`
	Turn   *TurnReport `json:"turn"` // the new run, which is in no session
	// Same reports that nothing differs: results, exit codes, outputs, files, environment and
	// working directory. Timestamps of files are not compared.
	Same    bool             `json:"same"`
	FSHash  Digest           `json:"fs_hash,omitempty"` // of the state that the first run left
	Steps   []StepDifference `json:"steps"`             // that differ
	Count   int              `json:"step_count"`        // of all steps
	Changes []FileDifference `json:"files"`             // in the state, by path
	More    int              `json:"files_more,omitempty"`
	Env     []string         `json:"env"` // names of variables
	Cwd     bool             `json:"cwd"` // the working directories differ
	// Template reports that the template was rebuilt in between, from another spec or with newer
	// packages. A rebuilt template alone is no difference.
	Template string `json:"template,omitempty"`
	// Home is the name of the first run's home directory. The new run began with the same files in
	// it, unless HomeMissing is set: they are no longer kept, and the new run had no home.
	Home        string `json:"home,omitempty"`
	HomeMissing bool   `json:"home_missing,omitempty"`
	HomeDiffers bool   `json:"home_differs,omitempty"` // the runs left different files in it
}

// A StepDifference is one step whose result differs.
type StepDifference struct {
	Name  string   `json:"name"`
	Index int      `json:"index,omitempty"` // from 1; absent: the result of the turn
	What  []string `json:"what"`            // "exit code 0 before, 1 now", "standard output"
	// Absent: equal, or not compared.
	Stdout *OutputCompare `json:"stdout,omitempty"`
	Stderr *OutputCompare `json:"stderr,omitempty"`
}

// A FileDifference is one path that differs between the two states.
type FileDifference struct {
	Path string `json:"path"`
	What string `json:"what"` // "only before", "only now", "differs"
}

// A TurnReport is the result of running a document.
type TurnReport struct {
	ID        TurnID        `json:"id"`
	Result    Result        `json:"result"`
	Error     string        `json:"error,omitempty"` // why Result is "error"
	Hint      string        `json:"hint,omitempty"`
	Kind      Kind          `json:"-"` // the kind of Error; empty if there is no error
	Substrate string        `json:"substrate"`
	Isolation string        `json:"isolation"`
	Machine   string        `json:"machine,omitempty"` // requested features that the machine lacks
	Template  Digest        `json:"template"`
	Image     string        `json:"image"`
	Started   time.Time     `json:"started"`
	Duration  time.Duration `json:"-"`
	Millis    int64         `json:"duration_ms"`
	Phases    []Phase       `json:"phases"` // time before and after the steps
	Receipt   string        `json:"receipt"`
	Steps     []StepReport  `json:"steps"`

	Session string `json:"session,omitempty"` // the session's name, or its ID if it has no name
	Number  int    `json:"number,omitempty"`  // number of the turn in its session
	// the branch that the turn is the newest turn of
	Branch   string         `json:"branch,omitempty"`
	Diverged bool           `json:"diverged,omitempty"` // Branch is new: another turn ended first
	Parents  []TurnID       `json:"parents,omitempty"`
	Start    string         `json:"start,omitempty"`   // the sandbox's initial state
	FSHash   Digest         `json:"fs_hash,omitempty"` // of the resulting state
	State    Digest         `json:"state,omitempty"`   // the object with the TurnState
	Record   Digest         `json:"record,omitempty"`  // the object with the TurnRecord
	Layer    *LayerInfo     `json:"layer,omitempty"`
	Network  *RecordNetwork `json:"network,omitempty"` // the kept data about its network
	Home     *HomeUse       `json:"home,omitempty"`    // the states of its home directory
	// what a deterministic turn ran with; nil: the turn was not deterministic
	Determinism *Determinism `json:"determinism,omitempty"`
	// Resumed has an entry for each time that the turn was resumed after an interruption.
	Resumed []Resumption `json:"resumed,omitempty"`
	// Times compares the runs of a turn that ran several times. The report is of the first run.
	Times *TimesReport `json:"times,omitempty"`
}

// A Phase is one named part of a turn's time.
type Phase struct {
	Name string `json:"name"`
	Took Millis `json:"duration_ms"`
}

// A Resumption is one time that an interrupted turn was resumed from its checkpoint.
type Resumption struct {
	After int       `json:"after"` // the number of the last step that had finished, from 1
	At    time.Time `json:"at"`
}
