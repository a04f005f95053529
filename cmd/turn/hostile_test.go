package main

import (
	"context"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/store/session"
	"turnstone.dev/turnstone/internal/template"
	"turnstone.dev/turnstone/internal/terminal"
	"turnstone.dev/turnstone/internal/terminal/terminaltest"
)

// TestNothingElsePrints checks that names of guests and documents reach a terminal only through
// Printf and Println of package terminal, which sanitize them, or through the calls listed here.
func TestNothingElsePrints(t *testing.T) {
	allowed := map[string]string{
		"../../internal/terminal/print.go":        "defines Printf and Println",
		"../../internal/completion/completion.go": "prints only words of the program",
	}
	raw := map[string]string{ // calls that write text that was sanitized before
		"complete.go": "prints only words of the program",
		"diff.go":     "terminal.Patch", "merge.go": "a receipt through terminal.Text; mergeText",
		"replay.go":                                  "terminal.Text",
		"ls.go":                                      "the end of a file, sanitized on a terminal",
		"../../internal/cli/proofcmd/bisect.go":      "terminal.Text",
		"../../internal/cli/proofcmd/frozen.go":      "terminal.Patch",
		"../../internal/cli/proofcmd/replayrange.go": "terminal.Text",
		"../../internal/terminal/progress.go":        "its own escapes; sanitized lines",
		"../../internal/terminal/sink.go":            "sanitized output",
		"run.go":                                     "a receipt, sanitized on a terminal",
		"show.go":                                    "a receipt, sanitized on a terminal",
	}
	files := ok[[]string](t)(filepath.Glob("*.go"))
	for _, dir := range []string{"terminal", "cli", "cli/flags", "cli/proofcmd", "cli/sandboxcmd",
		"completion"} {
		files = append(files, ok[[]string](t)(filepath.Glob("../../internal/"+dir+"/*.go"))...)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") || allowed[file] != "" {
			continue
		}
		ast.Inspect(ok[*ast.File](t)(parser.ParseFile(token.NewFileSet(), file, nil, 0)),
			func(n ast.Node) bool {
				call, is := n.(*ast.CallExpr)
				if !is {
					return true
				}
				switch name := exprText(call.Fun); {
				case strings.HasPrefix(name, "fmt.Print") ||
					strings.HasPrefix(name, "fmt.Fprint") ||
					name == "println" || name == "print":
					t.Errorf("%s calls %s: use terminal.Printf", file, name)
				case (name == "io.WriteString" || strings.HasSuffix(name, "stdout.Write") ||
					strings.HasSuffix(name, "stderr.Write")) && raw[file] == "":
					t.Errorf("%s calls %s: use terminal.Printf, or a sanitizer and say here why",
						file, name)
				}
				return true
			})
	}
}

func ok[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func exprText(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return exprText(e.X) + "." + e.Sel.Name
	}
	return ""
}

// TestHostileNames checks that hostile words in every field of the commands' output are harmless.
func TestHostileNames(t *testing.T) {
	a, read := piped(t)
	for name, print := range map[string]func(){
		"show": func() { printTurn(a.Stdout, terminaltest.Filled[turnstone.TurnInfo]()) },
		"diff": func() {
			d := terminaltest.Filled[turnstone.StateDiff]()
			for i, s := range []turnstone.ChangeStatus{turnstone.ChangeRenamed,
				turnstone.ChangeModified} {
				d.Files[i].Status = s
			}
			printDiff(a, a.Stdout, d, false, false)
			printDiff(a, a.Stdout, d, false, true)
			_ = a.WriteJSON(d)
		},
		"merge": func() {
			r := terminaltest.Filled[turnstone.MergeReport]()
			for _, o := range []turnstone.MergeOutcome{turnstone.MergeConflicts,
				turnstone.MergeDone, turnstone.MergeUpToDate, turnstone.MergeFastForward} {
				r.Outcome = o
				_, _ = io.WriteString(a.Stdout, mergeText(r, false))
			}
		},
		"replay": func() {
			_, _ = io.WriteString(a.Stdout,
				replayText(terminaltest.Filled[turnstone.ReplayReport]()))
		},
		"ls": func() {
			_, _ = terminal.Println(a.Stdout,
				fileLine(*terminaltest.Filled[turnstone.FileInfo]()))
		},
		"gc":      func() { printGC(a.Stdout, terminaltest.Filled[turnstone.GCReport]()) },
		"fsck":    func() { printFsck(a.Stdout, terminaltest.Filled[turnstone.FsckReport]()) },
		"details": func() { printDetails(a.Stdout, terminaltest.Filled[template.Details]()) },
		"summary": func() { (&runCmd{}).summary(a, terminaltest.Filled[turnstone.TurnReport]()) },
		"error": func() {
			a.Complain(turnstone.NewError("x", turnstone.KindInvalid, terminaltest.Hostile,
				errors.New(terminaltest.Hostile)).
				WithHint(terminaltest.Hostile))
			a.Complain(*terminaltest.Filled[document.SyntaxErrors]())
			warnNoSteps(a, terminaltest.Hostile)
		},
		"log": func() {
			a.LogTo(a.Stderr)
			slog.Warn(terminaltest.Hostile, terminaltest.Hostile, terminaltest.Hostile)
		},
	} {
		print()
		out := read()
		if out == "" {
			t.Errorf("%s has printed nothing", name)
		}
		terminaltest.Harmless(t, name, out)
	}
}

// piped returns an app that prints to files, and a function that returns the output since its last
// call.
func piped(t *testing.T) (*cli.App, func() string) {
	t.Cleanup(func(old *slog.Logger) func() { return func() { slog.SetDefault(old) } }(
		slog.Default()))
	out := ok[*os.File](t)(os.CreateTemp(t.TempDir(), "out"))
	errs := ok[*os.File](t)(os.CreateTemp(t.TempDir(), "err"))
	t.Cleanup(func() { _, _ = out.Close(), errs.Close() })
	return &cli.App{Stdout: out, Stderr: errs}, func() string {
		var all string
		for _, f := range []*os.File{out, errs} {
			all += string(ok[[]byte](t)(os.ReadFile(f.Name())))
			if err := errors.Join(f.Truncate(0),
				func() error { _, err := f.Seek(0, io.SeekStart); return err }()); err != nil {
				t.Fatal(err)
			}
		}
		return all
	}
}

// TestHostileTitles checks the commands that list sessions and turns, with a document's title.
func TestHostileTitles(t *testing.T) {
	home := t.TempDir()
	db := ok[*session.DB](t)(session.Open(t.Context(), filepath.Join(home, "context.db")))
	s := ok[turnstone.Session](t)(db.Ensure(context.Background(), "s"))
	turn := ok[turnstone.Turn](t)(db.Start(t.Context(), session.StartTurn{Session: s.ID,
		Kind: terminaltest.Hostile, Title: terminaltest.Hostile}))
	_, _, err := db.Finish(t.Context(), session.Finish{Turn: turn.ID,
		Result: turnstone.Result(terminaltest.Hostile)})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	a, read := piped(t)
	a.Env.Dir = home
	for _, args := range []string{"session ls", "session ls -a", "session show s", "log s",
		"log s --graph", "show s@1", "show s@1 --json", "log s --json",
		"show NAME", "log NAME", "ls s@1:/NAME", "sandbox ps NAME", "template show NAME",
		"run NAME", "check NAME"} {
		words := strings.Fields(args)
		words[len(words)-1] = strings.Replace(words[len(words)-1], "NAME", terminaltest.Hostile, 1)
		a.Main(new(commandLine), words)
		out := read()
		if out == "" {
			t.Errorf("%s has printed nothing", args)
		}
		terminaltest.Harmless(t, args, out)
	}
}
