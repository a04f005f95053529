package diagnose

import (
	"math"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"turnstone.dev/turnstone/internal/lang/syntax"
)

// FuzzFind: for any guest's output, a finding is inside a script and its message is a short line.
func FuzzFind(f *testing.F) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		f.Fatal("no recordings", err)
	}
	for i, file := range files {
		r, err := readRecording(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(r.scripts[0], r.scripts[len(r.scripts)-1], r.get("stderr"), i%4-1)
	}
	f.Add("", "", []byte("/run/turn/1.sh: line 1: x: y\n"), -1)
	f.Fuzz(func(t *testing.T, first, second string, stderr []byte, command int) {
		if len(first)+len(second) > 32<<10 {
			return
		}
		steps := []Step{
			{Path: runDir + "/1.sh", Dir: workspace, Script: syntax.Parse([]byte(first))},
			{Path: runDir + "/2.sh", Script: syntax.ParseAs([]byte(second), "sh")},
		}
		d := Steps(steps)
		for i := range steps {
			check(t, steps, d.Find(i, Failure{Command: command, ExitCode: 1, Stderr: stderr}))
		}
	})
}

// TestWrongScripts: invalid spans and parents from a parser are harmless.
func TestWrongScripts(t *testing.T) {
	src := []byte("python3 - <<EOF\nx\nEOF\n")
	span := func(from, to int) syntax.Span { return syntax.Span{Start: from, End: to} }
	bad := []syntax.Span{span(-1, 5), span(5, 2), span(0, 999),
		span(math.MaxInt, math.MinInt), span(0, len(src))}
	var commands []syntax.Command
	for i, s := range bad {
		commands = append(commands, syntax.Command{ID: i, Parent: len(bad) - i,
			Kind: syntax.KindSimple, Program: "python3", Span: s,
			Embedded: []syntax.Embedded{{Language: "python", Span: s},
				{Language: "python", Span: s, File: "a.py"}},
			Heredocs: []syntax.Heredoc{{Span: s}, {Span: span(16, 18)}}})
	}
	steps := []Step{{}, {Path: "/a.sh", Script: &syntax.Script{Source: src, Commands: commands}}}
	d := Steps(steps)
	for _, stderr := range []string{
		"  File \"<stdin>\", line 1\nSyntaxError: x", "  File \"a.py\", line 2\nSyntaxError: x",
		"/a.sh: line 99: x: y", "/a.sh: line 0: x", "python3: no",
	} {
		for command := -2; command < 9; command++ {
			check(t, steps, d.Find(1, Failure{Command: command, Stderr: []byte(stderr)}))
		}
	}
	for _, step := range []int{-1, 0, 2, math.MaxInt} {
		if found := d.Find(step, Failure{Stderr: []byte("/a.sh: line 1: x")}); found != nil {
			t.Errorf("step %d: %+v", step, found)
		}
	}
}

// cpuTime returns the process's processor time, which depends little on other load.
func cpuTime(t *testing.T) time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		t.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// TestBounds: long output and large scripts take little processor time.
func TestBounds(t *testing.T) {
	big := strings.Repeat("echo 'some text'\n", 600_000) + "python3 - <<'EOF'\n" +
		strings.Repeat("f()\n", 100_000) + "EOF\n"
	many := strings.Repeat("python3 -c 'f()'\n", 20_000)
	scripts := map[string]*syntax.Script{"large": {Source: []byte(big)},
		"many": {Source: []byte(many)}}
	large := scripts["large"]
	body := strings.Index(big, "f()")
	large.Commands = []syntax.Command{{ID: 0, Parent: -1, Kind: syntax.KindSimple,
		Program: "python3", Span: syntax.Span{Start: body - 18, End: len(big)},
		Embedded: []syntax.Embedded{{Language: "python",
			Span: syntax.Span{Start: body, End: len(big) - 4}, Verbatim: true}},
		Heredocs: []syntax.Heredoc{{Span: syntax.Span{Start: body, End: len(big) - 4},
			Verbatim: true}}}}
	for i := range 20_000 {
		at := i * len("python3 -c 'f()'\n")
		scripts["many"].Commands = append(scripts["many"].Commands,
			syntax.Command{ID: i, Parent: i - 1, Kind: syntax.KindSimple, Program: "python3",
				Span: syntax.Span{Start: at, End: at + 16},
				Embedded: []syntax.Embedded{{Language: "python",
					Span: syntax.Span{Start: at + 12, End: at + 15}, Verbatim: i%2 == 0,
					File: []string{"", "a.py"}[i/2%2]}}})
	}
	outputs := map[string]string{
		"a line without end": strings.Repeat("x", 1<<20),
		"frames": "Traceback (most recent call last):\n" +
			strings.Repeat("  File \"<stdin>\", line 100000, in f\n", 2000) + "E: x\n",
		"frames in a file": "Traceback (most recent call last):\n" +
			strings.Repeat("  File \"a.py\", line 1, in f\n", 2000) + "E: x\n",
		"tracebacks": strings.Repeat(
			"Traceback (most recent call last):\n  File \"<string>\", line 1\nE: x\n", 1000),
		"chained": strings.Repeat(
			"Traceback (most recent call last):\n  File \"<stdin>\", line 1\nE: x\n\n"+pyDuring+
				"\n\n",
			700),
		"bash":         strings.Repeat("/a.sh: line 600000: a: b: c: d\n", 3000),
		"empty lines":  strings.Repeat("\n", 64<<10),
		"node's heads": strings.Repeat("[eval]:1\n", 8000),
		"sqlite": strings.Repeat(
			"Error: in prepare, near \"a\": no\n  f() f() f()\n  ^--- error here\n", 900),
		"colons":              strings.Repeat(":", 64<<10),
		"blanks and brackets": strings.Repeat("   at (", 9000),
	}
	for name, s := range scripts {
		steps := []Step{{Path: "/a.sh", Dir: "/", Script: s}}
		d := Steps(steps)
		for what, out := range outputs {
			for _, command := range []int{-1, 0} {
				start := cpuTime(t)
				check(t, steps, d.Find(0, Failure{Command: command, Stderr: []byte(out)}))
				if took := cpuTime(t) - start; took > 5*time.Second {
					t.Errorf("%s in a %s script: %v", what, name, took)
				} else if took > 300*time.Millisecond {
					t.Logf("%s in a %s script: %v", what, name, took)
				}
			}
		}
	}
}
