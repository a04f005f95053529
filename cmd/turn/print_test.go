package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/store/session"
	"turnstone.dev/turnstone/internal/template"
)

// hostile is a name that clears the screen, forges a line of turn's, and reverses the text.
const hostile = "\x1b[2J\x1b[Hx\nturn: forged\r\x1b]0;t\x07\u009b31m\u202e\u2028\x7f\x00\xff"

// harmless fails if text contains a sequence that a terminal obeys, or a line that hostile has
// forged.
func harmless(t interface {
	Helper()
	Errorf(string, ...any)
}, where, text string) {
	t.Helper()
	for _, r := range text {
		if r != '\n' && (!visible(r) || r == utf8.RuneError && !utf8.ValidString(text)) {
			t.Errorf("%s: %q in %q", where, r, text)
			return
		}
	}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(strings.TrimSpace(line), "turn: forged") {
			t.Errorf("%s: a forged line in %q", where, text)
		}
	}
}

// TestNothingElsePrints checks that names of guests and documents reach a terminal only through
// putf and putln, which make them harmless, or through the calls listed here.
func TestNothingElsePrints(t *testing.T) {
	allowed := map[string]string{
		"print.go": "is putf and putln", "completion.go": "has words of the program's only",
	}
	raw := map[string]string{ // calls that write text that was sanitized before
		"diff.go": "a.cleanPatch(f.Patch)", "merge.go": "a receipt through a.clean; mergeText", "replay.go": "a.clean",
		"ls.go": "the end of a file, sanitized on a terminal", "progress.go": "its own escapes; sanitized lines", "run.go": "a receipt, sanitized on a terminal", "show.go": "a receipt, sanitized on a terminal",
	}
	for _, file := range ok[[]string](t)(filepath.Glob("*.go")) {
		if strings.HasSuffix(file, "_test.go") || allowed[file] != "" {
			continue
		}
		ast.Inspect(ok[*ast.File](t)(parser.ParseFile(token.NewFileSet(), file, nil, 0)), func(n ast.Node) bool {
			call, is := n.(*ast.CallExpr)
			if !is {
				return true
			}
			switch name := exprText(call.Fun); {
			case strings.HasPrefix(name, "fmt.Print") || strings.HasPrefix(name, "fmt.Fprint") || name == "println" || name == "print":
				t.Errorf("%s calls %s: use putf", file, name)
			case (name == "io.WriteString" || strings.HasSuffix(name, "stdout.Write") || strings.HasSuffix(name, "stderr.Write")) && raw[file] == "":
				t.Errorf("%s calls %s: use putf, or a sanitizer and say here why", file, name)
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

// For any arguments, the output is one line without invisible characters.
func TestPutf(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.String(), rapid.Just(hostile), rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) })).Draw(t, "text")
		var b bytes.Buffer
		_, _ = putf(&b, "%s %v %v %d %q\n", text, errors.New(text), []string{text}, 3, text)
		_, _ = putln(&b, text, turnstone.TurnID(text), struct{ a string }{text})
		harmless(t, "putf", b.String())
		if strings.Count(b.String(), "\n") != 2 {
			t.Fatalf("%q", b.String())
		}
	})
	var b bytes.Buffer
	_, _ = putf(&b, "%5d %s %s", turnstone.Bytes(7), time.Second, own("\x1b[1mx"))
	if got := b.String(); got != "    7 1s \x1b[1mx" {
		t.Errorf("%q", got)
	}
}

// JSON has the same value after terminal controls have become escapes.
func TestJSONShowsItself(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := map[string]string{"a": strings.ToValidUTF8(rapid.OneOf(rapid.String(), rapid.Just(hostile)).Draw(t, "text"), "")}
		for _, write := range []func(io.Writer, any) error{(&app{}).writeLine, func(w io.Writer, v any) error { return (&app{}).encode(w, v, "  ") }} {
			var b bytes.Buffer
			if err := write(&b, in); err != nil {
				t.Fatal(err)
			}
			harmless(t, "JSON", b.String())
			var out map[string]string
			if err := json.Unmarshal(b.Bytes(), &out); err != nil || !reflect.DeepEqual(in, out) {
				t.Fatalf("%v, %q is %q", err, in, out)
			}
		}
	})
}

// fill puts hostile into each string of v, and two elements into each slice.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() && v.CanSet() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		fill(v.Elem())
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			return
		}
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				fill(v.Field(i))
			}
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			v.SetBytes([]byte(hostile))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0))
		fill(v.Index(1))
	case reflect.String:
		v.SetString(hostile)
	case reflect.Int, reflect.Int64:
		v.SetInt(3)
	}
}

func filled[T any]() *T {
	v := new(T)
	fill(reflect.ValueOf(v).Elem())
	return v
}

// TestHostileNames checks that hostile words in every field of the commands' output are harmless.
func TestHostileNames(t *testing.T) {
	a, read := piped(t)
	for name, print := range map[string]func(){
		"show": func() { _ = a.printTurn(filled[executor.TurnInfo]()) },
		"diff": func() {
			d := filled[executor.StateDiff]()
			for i, s := range []executor.ChangeStatus{executor.Renamed, executor.Modified} {
				d.Files[i].Status = s
			}
			_ = a.printDiff(d, false, false, false)
			_ = a.printDiff(d, false, false, true)
			_ = a.printDiff(d, true, false, false)
		},
		"merge": func() {
			r := filled[executor.MergeReport]()
			for _, o := range []executor.MergeOutcome{executor.MergeConflicts, executor.MergeDone, executor.MergeUpToDate, executor.MergeFastForward} {
				r.Outcome = o
				_, _ = io.WriteString(a.stdout, mergeText(r, false))
			}
		},
		"replay":  func() { _, _ = io.WriteString(a.stdout, replayText(filled[executor.Replay]())) },
		"ls":      func() { _, _ = putln(a.stdout, fileLine(*filled[executor.FileInfo]())) },
		"gc":      func() { _ = a.printGC(filled[executor.GCReport]()) },
		"fsck":    func() { _ = a.printFsck(filled[executor.FsckReport]()) },
		"details": func() { _ = printDetails(a, filled[template.Details]()) },
		"summary": func() { (&runCmd{}).summary(a, filled[executor.Turn]()) },
		"error": func() {
			a.complain(turnstone.NewError("x", turnstone.KindInvalid, hostile, errors.New(hostile)).
				WithHint(hostile))
			a.complain(*filled[document.SyntaxErrors]())
			a.warnNoSteps(hostile)
		},
		"log": func() {
			a.logTo(a.stderr)
			slog.Warn(hostile, hostile, hostile)
		},
	} {
		print()
		out := read()
		if out == "" {
			t.Errorf("%s has printed nothing", name)
		}
		harmless(t, name, out)
	}
}

// piped returns an app that prints to files, and a function that returns the output since its last
// call.
func piped(t *testing.T) (*app, func() string) {
	t.Cleanup(func(old *slog.Logger) func() { return func() { slog.SetDefault(old) } }(slog.Default()))
	out := ok[*os.File](t)(os.CreateTemp(t.TempDir(), "out"))
	errs := ok[*os.File](t)(os.CreateTemp(t.TempDir(), "err"))
	t.Cleanup(func() { _, _ = out.Close(), errs.Close() })
	return &app{stdout: out, stderr: errs}, func() string {
		var all string
		for _, f := range []*os.File{out, errs} {
			all += string(ok[[]byte](t)(os.ReadFile(f.Name())))
			if err := errors.Join(f.Truncate(0), func() error { _, err := f.Seek(0, io.SeekStart); return err }()); err != nil {
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
	s := ok[session.Session](t)(db.Ensure(context.Background(), "s"))
	turn := ok[session.Turn](t)(db.Start(t.Context(), session.StartTurn{Session: s.ID, Kind: hostile, Title: hostile}))
	_, _, err := db.Finish(t.Context(), session.Finish{Turn: turn.ID, Result: turnstone.Result(hostile)})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	a, read := piped(t)
	a.env.Dir = home
	for _, args := range []string{"session ls", "session ls -a", "session show s", "log s", "log s --graph", "show s@1", "show s@1 --json", "log s --json",
		"show NAME", "log NAME", "ls s@1:/NAME", "sandbox ps NAME", "template show NAME", "run NAME", "check NAME"} {
		words := strings.Fields(args)
		words[len(words)-1] = strings.Replace(words[len(words)-1], "NAME", hostile, 1)
		a.main(words)
		out := read()
		if out == "" {
			t.Errorf("%s has printed nothing", args)
		}
		harmless(t, args, out)
	}
}

// TestHostileProgress checks names of guests and documents in progress, line by line.
func TestHostileProgress(t *testing.T) {
	for _, live := range []bool{false, true} {
		var out screen
		p := newProgress(&out, style{live: live, width: func() int { return 10_000 }}, 2)
		step := filled[document.Step]()
		p.Preparing("not kept, because they hold a secret: BASH_FUNC_" + hostile)
		p.Building(template.Event{Template: hostile, Phase: hostile, Item: hostile})
		p.StepStarted(step)
		p.StepOutput(step, turnstone.Stdout, []byte(hostile))
		p.mu.Lock()
		p.draw()
		p.mu.Unlock()
		p.StepFinished(step, *filled[turnstone.StepReport]())
		p.StepFinished(filled[document.Step](), turnstone.StepReport{Status: turnstone.StepSkipped, Note: hostile})
		p.Say("turn: %s", hostile)
		p.Close()
		harmless(t, "progress", strings.ReplaceAll(out.String(), "\r\x1b[2K", "\n"))
	}
}
