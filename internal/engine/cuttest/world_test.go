package cuttest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/engine"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/repo/branchmerge"
	"turnstone.dev/turnstone/internal/repo/repotest"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/template/oci/ocitest"
	"turnstone.dev/turnstone/internal/turntest"
)

func ok[T any](t testing.TB) func(v T, err error) T { return repotest.OK[T](t) }

// shared are the parts of a state directory that tests share.
var shared = []string{"templates", "kernel", "snapshots", "cache"}

// A world runs sequences as turns in real sandboxes. All sequences of a run are performed side by
// side, in a folder each, by the same turns.
type world struct {
	*engine.Engine
	t         testing.TB
	substrate string
	program   string            // performs operations
	registry  *ocitest.Registry // nil: not started yet
	sessions  int
}

// Where a sandbox has the program that performs operations, which the state has, too, and the files
// of one turn, which belong to the machine.
const (
	performer = "/opt/perform"
	input     = "/run/operations"
	output    = "/run/results"
)

// newWorld returns a world with a state directory of its own that shares the named parts of the one
// that all tests share: what is expensive to make.
func newWorld(t testing.TB, shares ...string) *world {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("the host's result takes root")
	}
	from, own := turntest.Home(t), &statedir.Dir{Root: t.TempDir()}
	for _, part := range shares {
		if err := errors.Join(os.MkdirAll(from.Path(part), 0o700),
			os.Symlink(from.Path(part), own.Path(part))); err != nil {
			t.Fatal(err)
		}
	}
	w := &world{t: t, substrate: os.Getenv("TURN_SUBSTRATE"), program: filepath.Join(t.TempDir(), "perform"),
		Engine: engine.New(own, engine.Options{Dir: own.Root, Kernel: os.Getenv("TURN_KERNEL"),
			KernelModules: os.Getenv("TURN_KERNEL_MODULES")})}
	if w.substrate == "" {
		w.substrate = "gvisor"
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", w.program, "./internal/perform")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return w
}

// A session is a session whose turns perform operations.
type session struct {
	*world
	name   string
	image  string
	folder string // of the sequences
	home   string // the name of the home that has the folder; empty: the state has it
}

func (w *world) session(image string) *session {
	w.sessions++
	return &session{world: w, name: fmt.Sprintf("cut-%d", w.sessions), image: image, folder: "/workspace"}
}

// turn performs operations, each after the name of its sequence, as a turn of a branch. add are
// files that it adds.
func (s *session) turn(branch string, ops []string, add ...document.Transfer) ([]string, *turnstone.TurnReport) {
	s.t.Helper()
	dir := s.t.TempDir()
	in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
	var lines strings.Builder
	for _, op := range ops {
		lines.WriteString(op + "\n")
	}
	if err := os.WriteFile(in, []byte(lines.String()), 0o600); err != nil {
		s.t.Fatal(err)
	}
	doc := ok[*document.Document](s.t)(document.Parse("cut.md", fmt.Appendf(nil,
		"```bash\n%s %s <%s >%s\n```\n", performer, s.folder, input, output)))
	rep, err := s.Run(s.t.Context(), plan.Request{Document: doc, Session: s.name, Branch: branch, Image: s.image,
		Substrate: s.substrate, Home: s.home, Add: append(add, document.Transfer{Path: in, Dest: input}),
		Get: []document.Transfer{{Path: output, Dest: out}}}, quiet{})
	if err != nil {
		s.t.Fatalf("%v (%s)", err, turnstone.HintOf(err))
	}
	if rep.Result != turnstone.ResultPassed {
		s.t.Fatalf("%s: %s (%s)\n%s", rep.Result, rep.Error, rep.Hint, rep.Receipt)
	}
	f := ok[*os.File](s.t)(os.Open(out))
	defer func() { _ = f.Close() }()
	var results []string
	for d := json.NewDecoder(f); ; {
		var one string
		if err := d.Decode(&one); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			s.t.Fatal(err)
		}
		results = append(results, one)
	}
	if len(results) != len(ops) {
		s.t.Fatalf("%d results of %d operations", len(results), len(ops))
	}
	return results, rep
}

// quiet is a turn.Observer that does nothing.
type quiet struct{}

func (quiet) Preparing(string)                                    {}
func (quiet) StepStarted(*document.Step)                          {}
func (quiet) StepOutput(*document.Step, turnstone.Stream, []byte) {}
func (quiet) StepFinished(*document.Step, turnstone.StepReport)   {}

// fork makes a branch on the newest turn of another.
func (s *session) fork(from, name string) {
	s.t.Helper()
	cs := ok[*repo.ContextStore](s.t)(s.Context(s.t.Context()))
	head := ok[turnstone.Turn](s.t)(cs.DB.Resolve(s.t.Context(), s.name+"@"+from))
	ok[turnstone.Branch](s.t)(cs.DB.Fork(s.t.Context(), head, name))
}

// merge merges a branch into another, as a turn.
func (s *session) merge(from, into string) {
	s.t.Helper()
	rep := ok[*turnstone.MergeReport](s.t)(branchmerge.Merge(s.t.Context(), s.Repo, branchmerge.Request{
		Session: s.name, From: from, Into: into, NoFF: true}))
	if rep.Outcome != turnstone.MergeDone && rep.Outcome != turnstone.MergeUpToDate {
		s.t.Fatalf("merge: %+v", rep)
	}
}

// name is the folder of the i-th sequence.
func name(i int) string { return fmt.Sprintf("s%d", i) }

// prefixed returns operations of the i-th sequence as lines.
func prefixed(i int, ops []string) []string {
	out := make([]string, len(ops))
	for j, op := range ops {
		out[j] = name(i) + " " + op
	}
	return out
}

// A performance is sequences that turns of a branch perform, piece by piece.
type performance struct {
	*session
	branch string
	of     []sequence
	shows  []*shown
}

func (s *session) perform(branch string, of []sequence) *performance {
	p := &performance{session: s, branch: branch, of: of, shows: make([]*shown, len(of))}
	for i := range p.shows {
		p.shows[i] = &shown{}
	}
	return p
}

// on performs the pieces from the first to before the last of the sequences that which selects, as a
// turn of a branch. After the last piece it lists all files.
func (p *performance) on(branch string, first, last int, which func(i int) bool) {
	p.t.Helper()
	var lines []string
	for i, s := range p.of {
		if which(i) {
			lines = append(lines, prefixed(i, slices.Concat(s[first:last]...))...)
			if last == len(s) {
				lines = append(lines, name(i)+" walk")
			}
		}
	}
	results, _ := p.turn(branch, lines)
	for i, s := range p.of {
		if !which(i) {
			continue
		}
		n := len(slices.Concat(s[first:last]...))
		p.shows[i].results, results = append(p.shows[i].results, results[:n]...), results[n:]
		if last == len(s) {
			p.shows[i].walk, results = results[0], results[1:]
		}
	}
}

func all(int) bool { return true }

// pieces performs the pieces from the first on, each as a turn.
func (p *performance) pieces(first int) {
	p.t.Helper()
	for i := first; i < len(p.of[0]); i++ {
		p.on(p.branch, i, i+1, all)
	}
}

// end lists the files of all sequences in a turn that changes nothing, and returns the FS hash.
func (p *performance) end() turnstone.Digest {
	p.t.Helper()
	walks := make([]string, len(p.of))
	for i := range p.of {
		walks[i] = name(i) + " walk"
	}
	results, rep := p.turn(p.branch, walks)
	for i, result := range results {
		p.shows[i].again = result
	}
	if p.home != "" {
		return rep.Home.Ended.Hash
	}
	return rep.FSHash
}
