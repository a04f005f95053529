package trace

import (
	"bytes"
	"fmt"
	"math"
	"time"
	"unicode/utf8"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/lang/syntax"
)

// kinds maps bash's numbers of command forms to the project's names; the last two are the tracer's
// own.
var kinds = [...]syntax.Kind{syntax.KindFor, syntax.KindCase, syntax.KindWhile, syntax.KindIf,
	syntax.KindSimple, syntax.KindFor, "", syntax.KindFunction,
	syntax.KindWhile, syntax.KindGroup, syntax.KindArithmetic, syntax.KindTest, syntax.KindFor,
	syntax.KindSubshell, syntax.KindCoprocess, syntax.KindPipeline,
	syntax.KindList}

// maxStateVars bounds the exported variables in a shell's state.
const maxStateVars = 1 << 16

var sources = [...]Source{Inherited, Pipe, Heredoc, File, Other}

// decodeSite returns false for an empty slot.
func decodeSite(id int, r *rawSite) (Site, bool) {
	kind, n := r.u32(12), r.u32(20)
	if r.u32(8) != 1 || kind >= uint32(len(kinds)) || kinds[kind] == "" || n > MaxText {
		return Site{}, false
	}
	text := r[offText : offText+n]
	// remove an incomplete character at the cut
	for i := 0; i < utf8.UTFMax && len(text) > 0 && r.u32(28) != 0; i++ {
		if c, size := utf8.DecodeLastRune(text); c != utf8.RuneError || size > 1 {
			break
		}
		text = text[:len(text)-1]
	}
	return Site{
		ID: id, Kind: kinds[kind], Line: max(0, int(int32(r.u32(16)))), Words: string(text),
		Cut: r.u32(28) != 0, Command: -1,
		Count: count(r.u64(32)), Failures: count(r.u64(40)), Time: nanoseconds(r.u64(48)),
	}, true
}

// decodeRecord returns false for an empty slot. begin is the step's start on the monotonic clock in
// nanoseconds; sites is the number of sites.
func (s shared) decodeRecord(id int, r *rawRecord, begin uint64, site *Site) (Record, bool) {
	state, at := r.u32(0), r.u32(4)
	if (state != recordOpen && state != recordClosed) || at == 0 || at > MaxSites {
		return Record{}, false
	}
	bits := r.u32(12)
	has := func(f uint32) bool { return bits&f != 0 }
	rec := Record{
		ID: id, Parent: -1, Site: int(at - 1), Command: -1,
		Kind: site.Kind, Line: site.Line, Words: site.Words,
		Pid: max(0, int(int32(r.u32(16)))), Child: max(0, int(int32(r.u32(20)))),
		Flags: Flags{
			Exited: has(flagExit), Async: has(flagAsync), PipeIn: has(flagPipeIn),
			PipeOut: has(flagPipeOut), Left: has(flagLeft),
			Program: has(flagProgram), Substituted: has(flagSubstituted), Signaled: has(flagSignal),
			Negated: has(flagNegated), Trap: has(flagTrap),
			Unfinished: state == recordOpen,
		},
	}
	// A command's number is greater than its parent's number, which excludes cycles.
	if p := r.u32(8); p > 0 && int64(p)-1 < int64(id) {
		rec.Parent = int(p - 1)
	}
	start, end := r.u64(24), r.u64(32)
	if start >= begin {
		rec.Start = nanoseconds(start - begin)
	}
	if state == recordClosed && end >= start {
		rec.Duration = nanoseconds(end - start)
	}
	if rec.Flags.Exited {
		rec.Exit = int(r.u32(40) & 0xff)
	}
	rec.Stdout = decodeRange(r.u64(48), r.u64(56), state == recordClosed && has(flagOut0) &&
		has(flagOut1))
	rec.Stderr = decodeRange(r.u64(64), r.u64(72), state == recordClosed && has(flagErr0) &&
		has(flagErr1))
	rec.Stdin = s.decodeStdin(r)
	return rec, true
}

func decodeRange(start, end uint64, known bool) Range {
	if !known || end < start || end > math.MaxInt64 {
		return Range{}
	}
	return Range{Start: int64(start), End: int64(end), Known: true}
}

func (s shared) decodeStdin(r *rawRecord) Stdin {
	in := Stdin{Source: Other, Size: -1}
	if k := r.u32(44); k < uint32(len(sources)) {
		in.Source = sources[k]
	}
	off, n, size := r.u32(80), r.u32(84), r.u64(88)
	if (in.Source != Heredoc && in.Source != File) || r.u32(96) != 1 || size > math.MaxInt64 {
		return in
	}
	in.Size = int64(size)
	if uint64(n) != size || n > maxInput || uint64(off)+uint64(n) > lenAux {
		return in
	}
	seen := bytes.Clone(s[offAux+int(off) : offAux+int(off)+int(n)])
	if n <= shownInput {
		in.Bytes = append([]byte{}, seen...)
	} else {
		in.Digest = turnstone.DigestBytes(seen)
	}
	return in
}

// decodeState returns nil if the shell left no state, and the reason if it failed.
func (s shared) decodeState() (*State, string) {
	switch s.load(offState) {
	case 1:
	case 2:
		return nil, fmt.Sprintf("the exported variables take more than %d MiB", maxState>>20)
	default:
		return nil, ""
	}
	n := s.load(offStateLen)
	if n == 0 || n > maxState || s[offEnv+int(n)-1] != 0 {
		return nil, "the shell's state is damaged"
	}
	// The step could have written 4 million empty strings. Invalid entries get no string, and the
	// slice is not allocated for all entries.
	cwd, rest, more := bytes.Cut(bytes.Clone(s[offEnv:offEnv+int(n)-1]), []byte{0})
	st := new(State)
	if len(cwd) > 0 && cwd[0] == '/' {
		st.Cwd = string(cwd)
	}
	for more {
		var p []byte
		p, rest, more = bytes.Cut(rest, []byte{0})
		if bytes.IndexByte(p, '=') <= 0 {
			continue
		}
		if len(st.Env) == maxStateVars {
			return nil, fmt.Sprintf("there are more than %d exported variables", maxStateVars)
		}
		st.Env = append(st.Env, string(p))
	}
	return st, ""
}

// untraced explains why commands may be missing.
func (s shared) untraced(ended bool) string {
	switch reason := s.load(offReason); reason {
	case reasonNone:
		return "the tracer was not loaded: the shell is linked statically, or /proc is missing"
	case reasonTracing:
	case reasonNotBash:
		return "the shell is not bash, or its symbols are hidden"
	case reasonVersion:
		return "the tracer does not know this version of bash"
	case reasonCode:
		return "the tracer does not know the first instructions of this build's function"
	case reasonMemory:
		return "the system does not allow the tracer to change the shell's code"
	case reasonNoDlsym:
		return "the functions of the C library were not found"
	case reasonMachine:
		return "the tracer does not know this processor"
	case reasonOddCommand:
		return "bash ran a kind of command that the tracer does not know"
	default:
		return "the trace is damaged"
	}
	if s.load(offReplaced) == 1 && s.load(offEnded) == 0 {
		n := min(s.load(offReplaceLen), lenName)
		return fmt.Sprintf("untraced from where bash was replaced by %q", s[offName:offName+int(n)])
	}
	return ""
}

func count(n uint64) int64 {
	if n > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(n)
}

func nanoseconds(n uint64) time.Duration { return time.Duration(count(n)) }
