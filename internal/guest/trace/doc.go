// Package trace records the commands that a step's bash runs, without changing the script's
// behavior or output. A small library, preloaded into bash, writes each call of bash's function for
// running commands into memory shared with this process. The library also saves the shell's
// exported variables and working directory when the shell ends.
//
// The shared memory is untrusted because a step can write to it. Every index, length and offset is
// checked. A step can only falsify its own trace.
//
// docs/decisions/0005-command-tracing.md explains the design.
package trace

import (
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/lang/syntax"
)

// Limits of a step. Counts continue beyond the limits.
const (
	MaxRecords = 10_000   // records of a step
	maxPerSite = 100      // records of a Site
	MaxSites   = 4096     // distinct commands of a step
	MaxText    = 200      // bytes of a command's words
	maxState   = 4 << 20  // bytes of exported variables and working directory
	maxInput   = 64 << 10 // bytes of standard input that are examined
	shownInput = 1 << 10  // bytes of standard input in a record
)

// A Report lists the commands that a step's shell ran.
type Report struct {
	Records  []Record // ordered by ID
	Sites    []Site   // ordered by ID
	Commands int64    // all commands that ran
	Dropped  int64    // commands without a record
	// Untraced explains why commands are missing, or why there are none. Empty if everything was
	// traced.
	Untraced string
	State    *State // nil if the shell left no state because it was killed or replaced
}

// A Record is a single run of a command.
type Record struct {
	ID       int         // from 0, ordered by start; numbers can be missing
	Parent   int         // ID of the enclosing command, always smaller, or -1
	Site     int         // the ID of its Site
	Command  int         // index in Script.Commands after Resolve, or -1
	Kind     syntax.Kind // the form of the command
	Line     int         // line number as bash counts, from 1; 0 if bash has none
	Words    string      // as in the script, before expansion; see Site.Words
	Pid      int         // process ID of the shell that ran the command
	Child    int         // the last process forked for the command, or 0
	Start    time.Duration
	Duration time.Duration
	Exit     int // 128 plus the signal's number if a signal ended the command
	Flags    Flags
	Stdout   Range // written to the step's output while the command ran
	Stderr   Range
	Stdin    Stdin
}

// Flags are further properties of a record.
type Flags struct {
	Exited      bool // Exit is known
	Async       bool // with &, or a coprocess
	PipeIn      bool // a stage that reads from the previous stage
	PipeOut     bool // a stage that writes to the next stage
	Left        bool // the command did not return: exit, return, set -e or an expansion error
	Program     bool // a process became the named program: not a builtin, function or failed start
	Substituted bool // inside $(…) or <(…)
	Signaled    bool // a signal ended its process
	Negated     bool // with !; Exit is the negated result
	Trap        bool // run by a trap
	// the end was not observed, or the shell ended first: Duration and Exit have no meaning
	Unfinished bool
}

// A Range is a part of a stream of the step, in bytes. Known is false for a command whose output
// went elsewhere when the command began or ended, such as a pipeline's stage before the last or a
// command in { …; } > file, and if the stream is not a pipe or both streams are the same pipe.
// Concurrent commands share their ranges with each other and with the enclosing commands.
type Range struct {
	Start, End int64
	Known      bool
}

// A Source is the source of a command's standard input.
type Source string

// The sources of standard input.
const (
	Inherited Source = "inherited" // the enclosing command's standard input
	Heredoc   Source = "heredoc"   // a here-document or here-string
	File      Source = "file"
	Pipe      Source = "pipe"  // the previous stage
	Other     Source = "other" // a duplicated or closed descriptor; /dev/null for a command with &
)

// Stdin is the standard input offered to a command; how much the command read is unknown.
type Stdin struct {
	Source Source
	Size   int64 // in bytes; -1 if unknown
	// the complete input if it was observed and is no longer than shownInput
	Bytes  []byte
	Digest turnstone.Digest // if the complete input was observed and is longer; otherwise empty
}

// A Site is a command of the script, identified by kind, line and words. It may have run many
// times.
type Site struct {
	ID   int // from 0, ordered by first appearance; numbers can be missing
	Kind syntax.Kind
	Line int
	// joined by spaces, at most MaxText bytes; for a loop its variable, for case its word, for a
	// function its name
	Words string
	Cut   bool // Words is incomplete
	// index in Script.Commands after Resolve if all records have the same command, or -1
	Command  int
	Count    int64         // number of runs
	Failures int64         // number of runs with an exit code other than 0
	Time     time.Duration // total of all runs; nested runs count twice
}

// A State is the state that the shell left at its end.
type State struct {
	Cwd string   // "" if the directory was removed
	Env []string // NAME=VALUE, exported functions as bash passes them; unfiltered
}
