// Package trace tells which commands a step's bash ran, without changing what the
// script does or prints: a small library, preloaded into bash, notes each call of
// the one function that runs commands into memory shared with this process. It
// also leaves the shell's exported variables and working directory when it ends.
//
// What comes out of the shared memory is hostile, because a step can write to it.
// Every index, length and offset is checked. All that a step gains is to lie about
// itself.
//
// docs/decisions/0005-command-tracing.md says why it is done so.
package trace

import (
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/lang/syntax"
)

// Limits of one step. Counts go on beyond them.
const (
	MaxRecords = 10_000   // records of a step
	MaxPerSite = 100      // records of one Site
	MaxSites   = 4096     // distinct commands of a step
	MaxText    = 200      // bytes of a command's words
	MaxState   = 4 << 20  // bytes of exported variables and working directory
	MaxInput   = 64 << 10 // bytes of standard input that are looked at
	ShownInput = 1 << 10  // bytes of standard input that a record carries itself
)

// A Report says what a step's shell ran.
type Report struct {
	Records  []Record // by ID
	Sites    []Site   // by ID
	Commands int64    // all that ran
	Dropped  int64    // those of them that have no record
	// Untraced says why commands are missing that ran, or why there are none. Empty
	// if all was traced.
	Untraced string
	State    *State // nil if the shell left none: it was killed or replaced
}

// A Record is one run of one command.
type Record struct {
	ID       int         // from 0, by start; a number can be missing
	Parent   int         // the ID of the command in which it ran, always smaller, or -1
	Site     int         // the ID of its Site
	Command  int         // index in Script.Commands after Resolve, else -1
	Kind     syntax.Kind // the form of the command
	Line     int         // as bash counts, from 1; 0 if bash keeps none
	Words    string      // as the script has them, before expansion; see Site.Words
	Pid      int         // of the shell that ran it
	Child    int         // the last process that was forked for it, or 0
	Start    time.Duration
	Duration time.Duration
	Exit     int // 128 plus the signal's number for one that a signal ended
	Flags    Flags
	Stdout   Range // what was written to the step's output while it ran
	Stderr   Range
	Stdin    Stdin
}

// Flags say more about a record.
type Flags struct {
	Exited      bool // Exit is known
	Async       bool // with &, or a coprocess
	PipeIn      bool // a stage that reads from the one before it
	PipeOut     bool // a stage that writes to the next one
	Left        bool // it did not return: exit, return, set -e or an expansion error jumped out of it
	Program     bool // a process became the program that it names: no builtin, function or failed start
	Substituted bool // inside $(…) or <(…)
	Signaled    bool // a signal ended its process
	Negated     bool // with !; Exit is what came out
	Trap        bool // run by a trap
	Unfinished  bool // nobody saw its end, or it had not ended when the shell did: Duration and Exit say nothing
}

// A Range is a part of one of the step's streams, in bytes. It is unknown (Known is
// false) for a command whose output went elsewhere when it began or ended, as that
// of a pipeline's stage before the last, or of all in { …; } > file, and when the
// stream is no pipe or both streams are one. Commands that run at the same time
// share their ranges, and so do those around them.
type Range struct {
	Start, End int64
	Known      bool
}

// A Source says where a command's standard input came from.
type Source string

// The sources of standard input.
const (
	Inherited Source = "inherited" // it has that of the command around it
	Heredoc   Source = "heredoc"   // a here-document or here-string
	File      Source = "file"
	Pipe      Source = "pipe"  // the stage before it
	Other     Source = "other" // a duplicated or closed descriptor; /dev/null for a command with &
)

// Stdin is a command's standard input as it was offered; how much was read of it
// is not known.
type Stdin struct {
	Source Source
	Size   int64            // bytes; -1 if unknown
	Bytes  []byte           // all of it, if it was seen and is no longer than ShownInput
	Digest turnstone.Digest // if all of it was seen and it is longer; empty else
}

// A Site is one command as the script has it: the same kind, line and words. It may
// have run many times.
type Site struct {
	ID       int // from 0, by first appearance; a number can be missing
	Kind     syntax.Kind
	Line     int
	Words    string        // joined by spaces, at most MaxText bytes; for a loop its variable, for case its word, for a function its name
	Cut      bool          // Words is not all
	Command  int           // index in Script.Commands after Resolve if all of its records are the same one, else -1
	Count    int64         // how often it began
	Failures int64         // how often it ended with another exit code than 0
	Time     time.Duration // of all its runs together; one inside another counts twice
}

// A State is what the shell left when it ended.
type State struct {
	Cwd string   // "" if it is gone
	Env []string // NAME=VALUE, exported functions as bash passes them; unfiltered
}
