package turnstone

// A ResultsDiff compares the results of two turns.
type ResultsDiff struct {
	// Same reports that results, exit codes, outputs and commands are equal. Durations are not
	// compared.
	Same      bool   `json:"same"`
	OldResult Result `json:"old_result"`
	NewResult Result `json:"new_result"`
	OldMillis int64  `json:"old_duration_ms"`
	NewMillis int64  `json:"new_duration_ms"`
	// Determinism of the turns; absent: the turn was not deterministic. It is shown and not compared.
	OldDeterminism *Determinism  `json:"old_determinism,omitempty"`
	NewDeterminism *Determinism  `json:"new_determinism,omitempty"`
	Steps          []StepCompare `json:"steps"` // of both turns, by name
}

// A StepCompare compares a step of two turns. A turn without the step has a null status.
type StepCompare struct {
	Name      string  `json:"name"`
	Same      bool    `json:"same"`
	OldStatus *Status `json:"old_status"`
	NewStatus *Status `json:"new_status"`
	OldExit   *int    `json:"old_exit_code"`
	NewExit   *int    `json:"new_exit_code"`
	// Durations are null if a turn has no trace.
	OldMillis *int64          `json:"old_duration_ms"`
	NewMillis *int64          `json:"new_duration_ms"`
	Stdout    *OutputCompare  `json:"stdout,omitempty"` // absent: equal
	Stderr    *OutputCompare  `json:"stderr,omitempty"`
	Commands  []CommandChange `json:"commands"` // that differ; at most 100
	// CommandsNote says why commands are not compared, or that there are more.
	CommandsNote string `json:"commands_note,omitempty"`
}

// An OutputCompare describes two outputs that differ.
type OutputCompare struct {
	OldBytes int64  `json:"old_bytes"`
	NewBytes int64  `json:"new_bytes"`
	Line     int    `json:"line,omitempty"` // the first that differs, from 1
	Old      string `json:"old,omitempty"`  // that line; shortened
	New      string `json:"new,omitempty"`
}

// A CommandChange is a command that only one of two turns ran, or that ended differently.
type CommandChange struct {
	Status  ChangeStatus `json:"status"` // A, D, or M: another exit code
	Line    int          `json:"line,omitempty"`
	Text    string       `json:"text"`
	OldExit *int         `json:"old_exit_code"`
	NewExit *int         `json:"new_exit_code"`
}

// A CompareReport lays several turns side by side.
type CompareReport struct {
	Turns []ComparedTurn `json:"turns"`
	Files []ComparedFile `json:"files"` // changed by at least one of them, by path
	More  int            `json:"files_more,omitempty"`
}

// A ComparedTurn is one column of a comparison.
type ComparedTurn struct {
	ID      TurnID         `json:"id"`
	Session string         `json:"session"` // its label
	Number  int            `json:"number"`
	Branch  string         `json:"branch"`
	Title   string         `json:"title,omitempty"`
	Result  Result         `json:"result"`
	Error   string         `json:"error,omitempty"`
	Millis  int64          `json:"duration_ms"`
	Layer   LayerInfo      `json:"layer"`
	FSHash  Digest         `json:"fs_hash,omitempty"`
	Steps   []ComparedStep `json:"steps"`
	// Determinism is absent if the turn was not deterministic.
	Determinism *Determinism `json:"determinism,omitempty"`
}

// A ComparedStep is a step of a compared turn.
type ComparedStep struct {
	Name     string `json:"name"`
	Status   Status `json:"status"`
	ExitCode *int   `json:"exit_code"`
	Millis   *int64 `json:"duration_ms"` // null: the turn has no trace
	Bytes    int64  `json:"stdout_bytes"`
	Output   string `json:"output,omitempty"` // the last line of its standard output; shortened
}

// A ComparedFile is a path with what each turn did to it.
type ComparedFile struct {
	Path string `json:"path"`
	// Changes (A, M, D, T, R) and Digests are in the order of the turns; empty: not changed, not
	// a file.
	Changes []string `json:"changes"`
	Digests []Digest `json:"digests"`
}
