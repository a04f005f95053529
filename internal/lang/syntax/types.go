// Package syntax tells what a step's script consists of: its commands with their
// source spans, the language of each, and the code in other languages that it
// carries. It runs nothing, and it is one library for two homes: the agent inside
// a sandbox, and the check before anything starts.
//
// What it is given is an author's or an attacker's text: any bytes, of any size
// and depth. Parsing is bounded in time and memory, and never panics.
package syntax

// A Span is a part of a script. Offsets count bytes from 0, End is the byte after
// the last; lines count from 1, columns count bytes from 1.
type Span struct {
	Start     int `json:"start"`
	End       int `json:"end"`
	Line      int `json:"line"`
	Column    int `json:"column"`
	EndLine   int `json:"endLine"`
	EndColumn int `json:"endColumn"` // of the byte after the last
}

// A Kind says what form a command has.
type Kind string

// The kinds of command, each a statement that the shell runs.
const (
	KindSimple     Kind = "simple"   // words, assignments or redirections: a program, builtin or function
	KindPipeline   Kind = "pipeline" // a | b; its stages are its children
	KindList       Kind = "list"     // a && b || c; all of its parts are its children
	KindFor        Kind = "for"      // for name in words, for ((;;)), select
	KindWhile      Kind = "while"    // while, until
	KindIf         Kind = "if"
	KindCase       Kind = "case"
	KindGroup      Kind = "group"      // { …; }
	KindSubshell   Kind = "subshell"   // ( … )
	KindFunction   Kind = "function"   // a definition; what it does when called are its children
	KindArithmetic Kind = "arithmetic" // (( … )), let is Simple
	KindTest       Kind = "test"       // [[ … ]]
	KindCoprocess  Kind = "coproc"
)

// A Command is one statement. Commands are numbered by where they begin, an outer
// one before what it contains.
type Command struct {
	ID       int        `json:"id"`     // index in Script.Commands
	Parent   int        `json:"parent"` // -1 at the top
	Kind     Kind       `json:"kind"`
	Span     Span       `json:"span"`              // without what follows it, as ; or &; with its redirections
	Stage    int        `json:"stage,omitempty"`   // in a pipeline: from 1
	Language string     `json:"language"`          // "bash", or what the program's own language is: see Rules
	Program  string     `json:"program,omitempty"` // the first word of a simple command, if it is a literal
	Embedded []Embedded `json:"embedded,omitempty"`
	Heredocs []Heredoc  `json:"heredocs,omitempty"`

	// Words are the source texts of a simple command's words, assignments before
	// the first word included, redirections not: what bash itself keeps of it, but
	// for what it writes anew (docs/shell.md lists that).
	Words []string `json:"-"`
	// Tested says that the script looks at the command's exit status: it is the
	// condition of an if or while, is followed by && or ||, or stands behind a "!".
	Tested bool `json:"tested,omitempty"`
	// Substituted says that the command stands inside $(…), `…` or <(…) of another one.
	Substituted bool `json:"substituted,omitempty"`
}

// Embedded is code in another language inside a command. Code inside code comes
// after the one it is in: bash -c "python -c '…'" has two.
type Embedded struct {
	Language string `json:"language"`
	Span     Span   `json:"span"`           // of the code in the script, without its quotes
	File     string `json:"file,omitempty"` // where the code is written to: cat > a.py <<EOF
	// Verbatim says that the program is given exactly the bytes of the span: no
	// expansion and no escape. Else a place in the code can differ from its place
	// in the script.
	Verbatim bool    `json:"verbatim"`
	Faults   []Fault `json:"faults,omitempty"` // what its grammar does not accept
	// Parsed is false if its language has no grammar here, if it is too large, or if
	// the shell expands something in it: what the program gets is then not known.
	Parsed bool `json:"parsed"`
}

// Heredoc is the body of a here-document, or the word of a here-string.
type Heredoc struct {
	Span     Span `json:"span"`     // of the body, without the delimiter's line
	Verbatim bool `json:"verbatim"` // it is passed on as it stands: no expansion, no tabs removed
	String   bool `json:"string"`   // <<<
	FD       int  `json:"fd"`       // -1 if a variable holds it: {name}<<
}

// A Fault is a place where a grammar does not accept the text.
type Fault struct {
	Span    Span   `json:"span"`
	Message string `json:"message"`
}

// A Script is one parsed script.
type Script struct {
	Source   []byte    `json:"-"`
	Commands []Command `json:"commands"`
	// Faults are where the text is not bash as far as the parsers here know. They
	// refuse nothing: bash itself has the last word.
	Faults []Fault `json:"faults,omitempty"`
	// Partial says why Commands is not all there is: the script is too large or too
	// deep, or not bash. Empty if it is all.
	Partial string `json:"partial,omitempty"`
}
