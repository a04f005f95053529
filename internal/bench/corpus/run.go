package corpus

import (
	"context"
	"embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/driver"
)

//go:embed template/template.toml testdata/goroutines/main.go
var inputs embed.FS

// Template is the name of the template in template/template.toml.
const Template = "determinism-corpus"

// A Runner runs groups of programs.
type Runner struct {
	x        *executor.Executor
	dir      string // has the documents' files
	progress func(string)
}

// NewRunner returns a Runner which uses the empty directory dir. It builds the Go program of the
// corpus with the go command.
func NewRunner(ctx context.Context, x *executor.Executor, dir string,
	progress func(string)) (*Runner, error) {
	for _, name := range []string{"template/template.toml", "testdata/goroutines/main.go"} {
		text, err := inputs.ReadFile(name)
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(name)), text, 0o600); err != nil {
			return nil, err
		}
	}
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o",
		"goroutines", "main.go")
	build.Dir, build.Env = dir, append(os.Environ(), "CGO_ENABLED=0", "GO111MODULE=off")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go build: %w: %s", err, out)
	}
	return &Runner{x: x, dir: dir, progress: progress}, nil
}

// BuildTemplate builds the template of the groups whose Image is Template, unless it is built.
func (r *Runner) BuildTemplate(ctx context.Context) error {
	_, err := r.x.BuildTemplate(ctx, filepath.Join(r.dir, "template.toml"),
		executor.TemplateBuild{Progress: r.progress})
	return err
}

// Run runs g once: deterministic under tier, or as an ordinary turn in gVisor if tier is empty.
// The error is about a turn that did not run to its end, or whose programs failed. The caller has
// to Forget the turn.
func (r *Runner) Run(ctx context.Context, g Group,
	tier turnstone.Tier) (*turnstone.TurnReport, error) {
	doc, err := document.Parse(g.Name+".md", g.Document(tier))
	if err != nil {
		return nil, err
	}
	substrate := driver.GVisor
	if tier == turnstone.TierStrict {
		substrate = driver.QEMU
	}
	turn, err := r.x.Run(ctx, executor.Request{Document: doc, Dir: r.dir, Substrate: substrate}, r)
	if err != nil {
		return nil, fmt.Errorf("group %s: %w (%s)", g.Name, err, turnstone.HintOf(err))
	}
	for i, s := range turn.Steps {
		if s.Status != turnstone.StepPassed && !g.Programs[i].fails {
			return turn, fmt.Errorf("program %s: %s: %s%s", s.Name, s.Status, s.Note,
				cutTo(s.Stderr, 1000))
		}
	}
	if turn.Error != "" {
		return turn, fmt.Errorf("group %s: %s: %s", g.Name, turn.Result, turn.Error)
	}
	return turn, nil
}

// Forget removes what is stored of turns.
func (r *Runner) Forget(ctx context.Context, turns ...*turnstone.TurnReport) error {
	for _, t := range turns {
		if t == nil || t.Session == "" {
			continue
		}
		if _, err := r.x.RemoveSession(ctx, t.Session); err != nil {
			return err
		}
	}
	return nil
}

// Runner is an executor.Observer.

// Preparing passes on what happens before a turn.
func (r *Runner) Preparing(what string) { r.progress(what) }

// StepStarted does nothing.
func (*Runner) StepStarted(*document.Step) {}

// StepOutput does nothing.
func (*Runner) StepOutput(*document.Step, turnstone.Stream, []byte) {}

// StepFinished does nothing.
func (*Runner) StepFinished(*document.Step, turnstone.StepReport) {}

// A Difference is one result in which two runs differ.
type Difference struct {
	Program string // empty: the program is unknown
	What    string // "status", "exit code", "stdout", "stderr", "files"
	A, B    string // the first line that differs, or the changes of files
}

func (d Difference) String() string {
	return fmt.Sprintf("%s: %s\n\t%s\n\t%s", d.Program, d.What, d.A, d.B)
}

// Compare returns the differences of two runs of the same document: results, exit codes, outputs,
// and files, environment and directory that the turns left.
func (r *Runner) Compare(ctx context.Context, a, b *turnstone.TurnReport) ([]Difference, error) {
	all := steps(a, b)
	if a.FSHash == b.FSHash {
		return all, nil
	}
	diff, err := r.x.Diff(ctx, turnstone.DiffRequest{From: string(a.ID), To: string(b.ID)})
	if err != nil {
		return nil, err
	}
	d := Difference{What: "files", A: string(a.FSHash), B: string(b.FSHash)}
	if len(a.Steps) == 1 {
		d.Program = a.Steps[0].Name
	}
	for i, f := range diff.Files {
		if i == 12 {
			d.B += fmt.Sprintf(" and %d more", len(diff.Files)-i)
			break
		}
		d.B += fmt.Sprintf(" %s %s %s", f.Status, f.Path, strings.Join(f.What, ","))
	}
	return append(all, d), nil
}

// steps compares results and outputs.
func steps(a, b *turnstone.TurnReport) (all []Difference) {
	if len(a.Steps) != len(b.Steps) {
		return []Difference{{What: "status", A: fmt.Sprint(len(a.Steps), " steps"),
			B: fmt.Sprint(len(b.Steps), " steps")}}
	}
	for i, s := range a.Steps {
		t := b.Steps[i]
		add := func(what, a, b string) { all = append(all, Difference{s.Name, what, a, b}) }
		if s.Status != t.Status {
			add("status", string(s.Status), string(t.Status))
		}
		if code(s) != code(t) {
			add("exit code", code(s), code(t))
		}
		if s.StdoutInfo.Digest != t.StdoutInfo.Digest {
			x, y := firstLine(s.Stdout, t.Stdout)
			add("stdout", x, y)
		}
		if s.StderrInfo.Digest != t.StderrInfo.Digest {
			x, y := firstLine(s.Stderr, t.Stderr)
			add("stderr", x, y)
		}
	}
	return all
}

func code(s turnstone.StepReport) string {
	if s.ExitCode == nil {
		return "none"
	}
	return fmt.Sprint(*s.ExitCode)
}

// firstLine returns the first line in which a and b differ. Outputs in reports are cut.
func firstLine(a, b string) (string, string) {
	x, y := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range max(len(x), len(y)) {
		line := func(l []string) string {
			if i < len(l) {
				return l[i]
			}
			return "(end)"
		}
		if p, q := line(x), line(y); p != q {
			return cutTo(p, 300), cutTo(q, 300)
		}
	}
	return "(in a part that the report lacks)", ""
}

func cutTo(s string, n int) string {
	if len(s) > n {
		return s[:n] + "…"
	}
	return s
}

// Programs returns the names of the programs that differ, sorted; "" if a program is unknown.
func Programs(all []Difference) []string {
	var names []string
	for _, d := range all {
		names = append(names, d.Program)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Busy keeps a processor busy until stop is called.
func Busy() (stop func()) {
	var done atomic.Bool
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for !done.Load() {
		}
	}()
	return func() { done.Store(true); <-ended }
}
