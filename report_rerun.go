package turnstone

// A FrozenReport compares the new run of a receipt's document with the receipt. Durations, times and
// IDs are not compared.
type FrozenReport struct {
	Of   TurnID      `json:"of"`   // the receipt's turn
	Same bool        `json:"same"` // results, exit codes, outputs and the FS hash
	Turn *TurnReport `json:"turn"` // the new run, which is in no session
	// Differences are in the order of the document; the result and the FS hash come first.
	Differences []FrozenDifference `json:"differences"`
	// Template reports that the template was rebuilt, which changes the FS hash.
	Template string `json:"template,omitempty"`
	// Home is the receipt's home directory. The new run had none, because a home is in no state.
	Home string `json:"home,omitempty"`
}

// A FrozenDifference is a part of a receipt that the new run does not have in the same form.
type FrozenDifference struct {
	Step string `json:"step,omitempty"` // empty: the whole turn
	Line int    `json:"line,omitempty"` // of the step in the receipt
	// What is "result", "fs", "script", "status", "exit code", "stdout" or "stderr".
	What string `json:"what"`
	Diff string `json:"diff"` // unified, without the names of files
}

// A RangeReport compares the new runs of several turns, each on the new run before it, with their
// first runs.
type RangeReport struct {
	Same  bool            `json:"same"`
	Turns []*ReplayReport `json:"turns"`
	First int             `json:"first_different,omitempty"` // number of the first that differs
	// Left counts the turns that did not run, because the one before left no state.
	Left int `json:"not_run,omitempty"`
	// Branch has the new turns if they ran on the present head. Only their results are compared.
	Branch string `json:"branch,omitempty"`
}

// A BisectReport names the first turn, or the first command of a turn, that differs.
type BisectReport struct {
	Found bool         `json:"found"`
	Tests []BisectTest `json:"tests"` // in their order
	// Turn is the first bad turn, or the one whose command was sought.
	Turn *BisectTurn `json:"turn,omitempty"`
	// Replay compares the first turn whose replay differs with its record.
	Replay *ReplayReport `json:"replay,omitempty"`
	// Command is the first command that differs.
	Command *BisectCommand `json:"command,omitempty"`
	// Candidates are the numbers of turns that remain, because those between could not be tested.
	Candidates []int  `json:"candidates,omitempty"`
	Note       string `json:"note,omitempty"` // why nothing was found, or what is not sure
}

// A BisectTest is one sandbox, or one comparison of two runs.
type BisectTest struct {
	Number   int    `json:"number"`  // of the turn, or of the last command that ran
	Verdict  string `json:"verdict"` // "good", "bad", "skip", "same", "differs"
	ExitCode *int   `json:"exit_code,omitempty"`
	Output   string `json:"output,omitempty"` // the end of the command's output
}

// A BisectTurn is the turn that a search ended with.
type BisectTurn struct {
	ID     TurnID       `json:"id"`
	Number int          `json:"number"`
	Title  string       `json:"title,omitempty"`
	Files  []FileChange `json:"files,omitempty"` // that it changed
	More   int          `json:"files_more,omitempty"`
}

// A BisectCommand is a command at the top level of a step, with its effect in two runs.
type BisectCommand struct {
	Step  string `json:"step"`
	Line  int    `json:"line"` // in the document
	Text  string `json:"text"`
	Index int    `json:"index"` // among the commands at the top level of all steps, from 1
	Of    int    `json:"of"`
	Tier  Tier   `json:"tier,omitempty"` // of the runs; empty: they were not deterministic
	Runs  int    `json:"runs"`           // of the document, whole or cut
	// Old and New are the results of two runs that end after the command: what the step printed,
	// from the first line that differs.
	Old     string           `json:"old,omitempty"`
	New     string           `json:"new,omitempty"`
	Steps   []StepDifference `json:"steps"`
	Changes []FileDifference `json:"files"`
	Env     []string         `json:"env"`
	Cwd     bool             `json:"cwd"`
}
