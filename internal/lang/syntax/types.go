// Package syntax parses a step's script: its commands with their source spans, the language of
// each, and code in other languages. It runs nothing. The agent inside a sandbox and the check
// before a start both use it.
//
// The input is an author's or an attacker's text: any bytes, of any size and depth. Parsing is
// bounded in time and memory, and never panics.
package syntax

// A Span is a part of a script. Offsets count bytes from 0, End is the byte after the last; lines
// count from 1, columns count bytes from 1.
type Span struct {
	Start     int `json:"start"`
	End       int `json:"end"`
	Line      int `json:"line"`
	Column    int `json:"column"`
	EndLine   int `json:"endLine"`
	EndColumn int `json:"endColumn"` // column of the byte after the last
}

// A Kind is the form of a command.
type Kind string

// The kinds of command, each a statement that the shell runs.
const (
	// words, assignments or redirections: a program, builtin or function
	KindSimple     Kind = "simple"
	KindPipeline   Kind = "pipeline" // a | b; its stages are its children
	KindList       Kind = "list"     // a && b || c; all of its parts are its children
	KindFor        Kind = "for"      // for name in words, for ((;;)), select
	KindWhile      Kind = "while"    // while, until
	KindIf         Kind = "if"
	KindCase       Kind = "case"
	KindGroup      Kind = "group"      // { …; }
	KindSubshell   Kind = "subshell"   // ( … )
	KindFunction   Kind = "function"   // a definition; the commands of its body are its children
	KindArithmetic Kind = "arithmetic" // (( … )); let is Simple
	KindTest       Kind = "test"       // [[ … ]]
	KindCoprocess  Kind = "coproc"
)

// A Command is a statement. Commands are numbered by their beginnings, an outer command before its
// contents.
type Command struct {
	ID     int  `json:"id"`     // index in Script.Commands
	Parent int  `json:"parent"` // -1 at the top
	Kind   Kind `json:"kind"`
	Span   Span `json:"span"`            // without a following ; or &; with its redirections
	Stage  int  `json:"stage,omitempty"` // position in a pipeline, from 1
	// "bash", or the language of the command's program: see Rules
	Language string `json:"language"`
	// the first word of a simple command, if it is literal
	Program  string     `json:"program,omitempty"`
	Embedded []Embedded `json:"embedded,omitempty"`
	Heredocs []Heredoc  `json:"heredocs,omitempty"`

	// Words are the source texts of a simple command's words, including assignments before the
	// first word, without redirections: the text that bash itself keeps, except parts that bash
	// rewrites (listed in docs/shell.md).
	Words []string `json:"-"`
	// Tested reports that the script examines the command's exit status: it is the condition of an
	// if or while, is followed by && or ||, or preceded by "!".
	Tested bool `json:"tested,omitempty"`
	// Substituted reports that the command is inside $(…), `…` or <(…) of another command.
	Substituted bool `json:"substituted,omitempty"`
}

// Embedded is code in another language inside a command. Code inside code follows its container:
// bash -c "python -c '…'" has two.
type Embedded struct {
	Language string `json:"language"`
	Span     Span   `json:"span"`           // of the code in the script, without its quotes
	File     string `json:"file,omitempty"` // the file that receives the code: cat > a.py <<EOF
	// Verbatim reports that the program gets exactly the bytes of the span: no expansion and no
	// escape. Otherwise a position in the code can differ from its position in the script.
	Verbatim bool    `json:"verbatim"`
	Faults   []Fault `json:"faults,omitempty"` // positions that its grammar rejects
	// Parsed is false if its language has no grammar here, if it is too large, or if the shell
	// expands a part of it: the program's input is then unknown.
	Parsed bool `json:"parsed"`
}

// Heredoc is the body of a here-document, or the word of a here-string.
type Heredoc struct {
	Span     Span `json:"span"`     // of the body, without the delimiter's line
	Verbatim bool `json:"verbatim"` // passed on unchanged: no expansion, no removed tabs
	String   bool `json:"string"`   // <<<
	FD       int  `json:"fd"`       // -1 if a variable contains it: {name}<<
}

// A Fault is a position where a grammar rejects the text.
type Fault struct {
	Span    Span   `json:"span"`
	Message string `json:"message"`
}

// A Script is a parsed script.
type Script struct {
	Source   []byte    `json:"-"`
	Commands []Command `json:"commands"`
	// Faults are the positions where the parsers reject the text as bash. They do not reject the
	// script: bash decides.
	Faults []Fault `json:"faults,omitempty"`
	// Partial tells why Commands is incomplete: the script is too large or too deep, or not bash.
	// Empty if complete.
	Partial string `json:"partial,omitempty"`
}
