package agent

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"turnstone.dev/turnstone/internal/guest/exports"
	"turnstone.dev/turnstone/internal/guest/process"
	"turnstone.dev/turnstone/internal/guest/trace"
	"turnstone.dev/turnstone/internal/lang/syntax"
	"turnstone.dev/turnstone/wire"
)

// A recorder records the commands of a step's shell. A capturing recorder also captures the shell's
// state for the next step; otherwise a prelude does so.
type recorder interface {
	process.Watcher
	captures() bool
	Env() []string     // for the shell's start
	Files() []*os.File // inherited by the shell from descriptor 3 on
	Started(pid int)
	Drain() []trace.Record         // the commands that have ended since the last call
	Finish(exit int) *trace.Report // also ends a recorder whose shell was not started
}

// traced records with the tracer.
type traced struct{ *trace.Recorder }

func (traced) captures() bool { return true }

// untraced records nothing. Its text is the reason.
type untraced string

func (untraced) captures() bool             { return false }
func (untraced) Env() []string              { return nil }
func (untraced) Files() []*os.File          { return nil }
func (untraced) Started(int)                {}
func (untraced) Drain() []trace.Record      { return nil }
func (untraced) Reading(int)                {}
func (untraced) Read(int, int)              {}
func (u untraced) Finish(int) *trace.Report { return &trace.Report{Untraced: string(u)} }

// A Tracing creates recorders. It caches its check of each bash, so that a restored agent does not
// repeat the check. It is safe for concurrent use.
type Tracing struct {
	mu     sync.Mutex
	tracer *trace.Tracer
	err    error // the reason why there is no tracer
	bash   fileID
	refuse error // the reason why bash cannot be traced
}

// A fileID shows whether a file is still the same.
type fileID struct {
	dev, ino    uint64
	size        int64
	mtime, ctim syscall.Timespec
}

// NewTracing loads the tracer. Without one, steps run untraced.
func NewTracing() *Tracing {
	t := new(Tracing)
	t.tracer, t.err = trace.New()
	return t
}

// Close releases the tracer.
func (t *Tracing) Close() {
	if t.tracer != nil {
		t.tracer.Close()
	}
}

// check reports whether the bash at path can be traced.
func (t *Tracing) check(path string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err != nil {
		return t.err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	sys := st.Sys().(*syscall.Stat_t)
	id := fileID{sys.Dev, sys.Ino, sys.Size, sys.Mtim, sys.Ctim}
	if id != t.bash {
		t.bash, t.refuse = id, trace.Check(f)
	}
	return t.refuse
}

// recorder returns the recorder of a step in this language.
func (s *shell) recorder(language string, env []string) recorder {
	t := s.a.opt.Tracing
	switch {
	case language != "bash":
		return untraced("only bash is traced")
	case t == nil:
		return untraced("the agent has no tracer")
	}
	err := t.check(s.a.path(bashPath))
	if err == nil {
		var r *trace.Recorder
		if r, err = s.record(t.tracer, env); err == nil {
			return traced{r}
		}
	}
	return untraced(strings.TrimPrefix(err.Error(), "tracer: "))
}

// record prepares the recording of a step, whose root an earlier step may have changed.
func (s *shell) record(t *trace.Tracer, env []string) (*trace.Recorder, error) {
	if s.a.opt.Chroot == "" {
		return t.Record(env)
	}
	root, err := s.a.files.RootFD()
	if err != nil {
		return nil, err
	}
	return t.RecordIn(root, env)
}

// fromState selects the variables to carry from a traced shell's state. The directory keeps the name
// by which the shell knows it, which may lead through symbolic links: "cd .." leads back along it.
func (a *Agent) fromState(s *trace.State) (exports.State, error) {
	var c exports.State
	if s == nil {
		return c, exports.ErrMalformed
	}
	c.Cwd = s.Cwd
	for _, kv := range s.Env {
		name, value, ok := strings.Cut(kv, "=")
		switch {
		case !ok || strings.IndexByte(kv, 0) >= 0:
		case name == "PWD" && (c.Cwd == "" || a.sameDir(value, c.Cwd)):
			c.Cwd = value // if the directory no longer exists, it will be created again
		case exports.Carries(name):
			c.Vars = append(c.Vars, kv)
		case strings.HasPrefix(name, "BASH_FUNC_") && strings.HasSuffix(name, "%%"):
			c.Funs = append(c.Funs, kv)
		}
	}
	if err := checkSession(wire.MethodShellExecute, c.Cwd,
		append(slices.Clone(c.Vars), c.Funs...)); err != nil {
		return c, err
	}
	return c, nil
}

// sameDir reports whether two paths of the sandbox are one directory.
func (a *Agent) sameDir(x, y string) bool {
	if x == y || !filepath.IsAbs(x) {
		return x == y
	}
	one, err := os.Stat(a.path(x))
	if err != nil {
		return false
	}
	other, err := os.Stat(a.path(y))
	return err == nil && os.SameFile(one, other)
}

func sortByEnd(records []trace.Record) {
	slices.SortStableFunc(records, func(a, b trace.Record) int {
		return int(min(1, max(-1, (a.Start+a.Duration)-(b.Start+b.Duration))))
	})
}

// Bounds of an answer to Shell.parse, because a message has a bounded number of values.
const (
	maxCommands = 10_000
	maxFaults   = 1000
	maxParts    = 10_000 // embedded code, here-documents and their errors, of all commands
)

// wireScript converts a parsed script for the wire. It truncates the script after a maximum number
// of commands, and marks the result as partial.
func wireScript(s *syntax.Script) *wire.ShellParseResult {
	res := &wire.ShellParseResult{Commands: make([]wire.ShellCommand, 0,
		min(len(s.Commands), maxCommands)),
		Faults: wireFaults(s.Faults[:min(len(s.Faults), maxFaults)]), Partial: s.Partial}
	cut := func() {
		if res.Partial == "" {
			res.Partial = "the script has more parts than an answer can contain"
		}
	}
	if len(s.Faults) > maxFaults {
		cut()
	}
	parts := 0
	for i := range s.Commands {
		c := &s.Commands[i]
		parts += len(c.Embedded) + len(c.Heredocs)
		for _, e := range c.Embedded {
			parts += len(e.Faults)
		}
		if i == maxCommands || parts > maxParts {
			cut()
			break
		}
		w := wire.ShellCommand{ID: int64(c.ID), Parent: int64(c.Parent),
			Kind: wire.ShellCommandKind(c.Kind), Span: trace.SpanToWire(c.Span),
			Stage: int64(c.Stage), Language: c.Language, Program: c.Program,
			Substituted: c.Substituted}
		for _, e := range c.Embedded {
			w.Embedded = append(w.Embedded, wire.ShellEmbedded{Language: e.Language,
				Span: trace.SpanToWire(e.Span), File: e.File,
				Verbatim: e.Verbatim, Parsed: e.Parsed, Faults: wireFaults(e.Faults)})
		}
		for _, h := range c.Heredocs {
			w.Heredocs = append(w.Heredocs, wire.ShellHeredoc{Span: trace.SpanToWire(h.Span),
				Verbatim: h.Verbatim, String: h.String, FD: int64(h.FD)})
		}
		res.Commands = append(res.Commands, w)
	}
	return res
}

func wireFaults(faults []syntax.Fault) []wire.ShellFault {
	var out []wire.ShellFault
	for _, f := range faults {
		out = append(out, wire.ShellFault{Span: trace.SpanToWire(f.Span), Message: f.Message})
	}
	return out
}
