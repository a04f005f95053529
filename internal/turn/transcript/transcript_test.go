package transcript

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/sandboxes/performed"
	"turnstone.dev/turnstone/wire"
)

// shown is what the test's program was run with.
type shown struct {
	Args  []string
	Env   []string
	Input []byte
	Dir   string
}

const role = "TURNSTONE_TRANSCRIPT_TEST"

// TestMain makes the test binary the program of the commands: it writes what it was run with.
func TestMain(m *testing.M) {
	if os.Getenv(role) == "" {
		os.Exit(m.Run())
	}
	var in bytes.Buffer
	_, _ = in.ReadFrom(os.Stdin)
	dir, _ := os.Getwd()
	s := shown{Args: os.Args, Input: in.Bytes(), Dir: dir}
	for _, kv := range os.Environ() {
		if strings.HasPrefix(kv, "V") {
			s.Env = append(s.Env, kv)
		}
	}
	_ = json.NewEncoder(os.Stdout).Encode(asBytes(s))
}

// asBytes keeps bytes that JSON's strings cannot have.
func asBytes(s shown) map[string][][]byte {
	out := map[string][][]byte{"input": {s.Input}, "dir": {[]byte(s.Dir)}}
	for _, a := range s.Args {
		out["args"] = append(out["args"], []byte(a))
	}
	slices.Sort(s.Env)
	for _, kv := range s.Env {
		out["env"] = append(out["env"], []byte(kv))
	}
	return out
}

// text draws any text without NUL, with what is special in bash and in Markdown.
func text() *rapid.Generator[string] {
	special := rapid.SampledFrom([]string{"", "`", "```", "~~~~", "'", `"`, "\\", "$(x)", "\n", "\r",
		"\r\n", "\t", "END", "\nEND\n", "<!-- turn:result -->", "---", "&amp;", "\xff", "\u2028",
		"\u00a0", "é", "=", "-", "# ", "!", "~", "*", "{}", "|", "\x1b[0m", "\ufeff", "\ufffd"})
	return rapid.Custom(func(t *rapid.T) string {
		parts := rapid.SliceOfN(rapid.OneOf(special, rapid.String()), 0, 4).Draw(t, "parts")
		return strings.ReplaceAll(strings.Join(parts, ""), "\x00", "")
	})
}

// command draws any command, as a recorder has it.
func command() *rapid.Generator[performed.Command] {
	return rapid.Custom(func(t *rapid.T) performed.Command {
		c := performed.Command{ID: "p1", Started: time.Unix(rapid.Int64Range(0, 99).Draw(t, "s"), 0),
			Took: time.Duration(rapid.Int64Range(-1, 1e12).Draw(t, "took")),
			Cwd:  rapid.OneOf(text(), rapid.Just("/workspace")).Draw(t, "cwd"),
			User: rapid.OneOf(text(), rapid.Just("")).Draw(t, "user"), Name: text().Draw(t, "name"),
			Terminal: rapid.Bool().Draw(t, "terminal"), Cut: rapid.Bool().Draw(t, "cut"),
			Ended: rapid.Bool().Draw(t, "ended"), Input: []byte(text().Draw(t, "input")),
			InputSize: rapid.Int64().Draw(t, "inputSize")}
		if rapid.Bool().Draw(t, "exited") {
			c.Exit = &wire.ProcessExit{ExitCode: rapid.Int64().Draw(t, "exit"),
				Killed: rapid.Bool().Draw(t, "killed")}
		}
		if rapid.Bool().Draw(t, "step") {
			c.Language = rapid.SampledFrom([]string{"bash", "sh", "perl"}).Draw(t, "language")
			c.Script = text().Draw(t, "script") + rapid.String().Draw(t, "more")
			return c
		}
		c.Argv = rapid.SliceOfN(text(), 0, 4).Draw(t, "argv")
		for _, v := range rapid.SliceOfN(text(), 0, 3).Draw(t, "env") {
			c.Env = append(c.Env, "V"+v)
		}
		return c
	})
}

// TestDocumentParses checks that the document of any commands has a step for each of them, and that
// its receipt, with any outputs, parses to the same steps.
func TestDocumentParses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := rapid.SliceOfN(command(), 0, 5).Draw(t, "commands")
		o := Options{Title: text().Draw(t, "title"), User: text().Draw(t, "user"),
			Image:    rapid.SampledFrom([]string{"", "base", "docker.io/library/a:b"}).Draw(t, "image"),
			Unlisted: rapid.Int64Range(0, 2).Draw(t, "unlisted"), Missing: text().Draw(t, "missing")}
		src, steps := Write(all, o)
		doc, err := document.Parse("x.md", src)
		if err != nil {
			t.Fatalf("%v in:\n%s", err, src)
		}
		if len(doc.Steps) != len(all) || len(steps) != len(all) || doc.Front.Image != o.Image {
			t.Fatalf("%d steps of %d commands:\n%s", len(doc.Steps), len(all), src)
		}
		results := make([]document.StepResult, len(doc.Steps))
		for i, s := range doc.Steps {
			out := []byte(text().Draw(t, "output"))
			results[i] = document.StepResult{Status: turnstone.StepPassed, Note: text().Draw(t, "note"),
				Stdout: document.Output{Head: out, Size: int64(len(out))}}
			if plain := all[i].Script; all[i].Language == "bash" && !all[i].Cut && plainText(plain) &&
				!strings.Contains(s.Script, strings.TrimSuffix(plain, "\n")) {
				t.Errorf("%q became %q", plain, s.Script)
			}
		}
		receipt := doc.Receipt(document.TurnInfo{ID: "t_1", Result: turnstone.ResultPassed}, results)
		again, err := document.Parse("x.md", receipt)
		if err != nil {
			t.Fatalf("%v in:\n%s", err, receipt)
		}
		if !bytes.Equal(again.Clean(), doc.Clean()) || len(again.Steps) != len(doc.Steps) {
			t.Fatalf("the receipt is of another document:\n%s", receipt)
		}
		for i := range doc.Steps {
			if doc.Steps[i].Script != again.Steps[i].Script {
				t.Errorf("%q became %q", doc.Steps[i].Script, again.Steps[i].Script)
			}
		}
	})
}

// TestStepsDoTheSame runs steps with bash: the program gets the same arguments, variables, input and
// directory as the command had.
func TestStepsDoTheSame(t *testing.T) {
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	names := []string{"program", "cd", "time", "a=b", "with space", "it's", "!", "exec", "[["}
	for _, name := range names {
		if err := os.Symlink(self, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	odd := filepath.Join(dir, "a 'folder'\n\xff")
	if err := os.Mkdir(odd, 0o755); err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		c := performed.Command{Cwd: rapid.SampledFrom([]string{dir, odd}).Draw(t, "cwd"),
			Argv: append([]string{rapid.SampledFrom(names).Draw(t, "program")},
				rapid.SliceOfN(text(), 0, 3).Draw(t, "args")...),
			Input: []byte(strings.Repeat(text().Draw(t, "input"),
				rapid.IntRange(1, 60).Draw(t, "times"))),
			Ended: true, Exit: &wire.ProcessExit{}}
		if rapid.Bool().Draw(t, "binary") {
			c.Input = append(c.Input, 0)
		}
		c.InputSize = int64(len(c.Input))
		for i, v := range rapid.SliceOfN(text(), 0, 2).Draw(t, "env") {
			c.Env = append(c.Env, fmt.Sprintf("V%s%d=%s",
				rapid.SampledFrom([]string{"", "_", ".x", "-"}).Draw(t, "name"), i, v))
		}
		src, _ := Write([]performed.Command{c}, Options{})
		doc, err := document.Parse("x.md", src)
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("bash", "-c", doc.Steps[0].Script)
		// A program with the race detector else sleeps for a second before it ends.
		cmd.Env = []string{role + "=1", "PATH=" + dir + ":" + os.Getenv("PATH"),
			"GORACE=atexit_sleep_ms=10"}
		cmd.Dir = doc.Steps[0].Cwd
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v in:\n%s", err, src)
		}
		var got map[string][][]byte
		if err := json.Unmarshal(out, &got); err != nil {
			t.Fatalf("%q: %v", out, err)
		}
		want := asBytes(shown{Args: c.Argv, Env: slices.Clone(c.Env), Input: c.Input, Dir: c.Cwd})
		for key := range want {
			if !slices.EqualFunc(got[key], want[key], bytes.Equal) {
				t.Fatalf("%s: %q, not %q:\n%s", key, got[key], want[key], src)
			}
		}
	})
}

// TestSteps checks the form of steps, as a reader sees them.
func TestSteps(t *testing.T) {
	exit := func(code int64) *wire.ProcessExit { return &wire.ProcessExit{ExitCode: code} }
	began := time.Unix(100, 0)
	for _, tt := range []struct {
		name string
		c    performed.Command
		user string
		want string
	}{
		{"plain", performed.Command{Argv: []string{"ls", "-l"}, Cwd: "/workspace", Exit: exit(0)}, "",
			"```bash cwd=/workspace\nls -l\n```"},
		{"quoted", performed.Command{Argv: []string{"sh", "-c", "echo 'x'"}, Exit: exit(0)}, "",
			"```bash\nsh -c 'echo '\\''x'\\'''\n```"},
		{"failed", performed.Command{Argv: []string{"false"}, Exit: exit(1)}, "",
			"```bash continue-on-error\nfalse\n```"},
		{"variables", performed.Command{Argv: []string{"env"}, Env: []string{"A=x y", "B="},
			Exit: exit(0)}, "", "```bash\nA='x y' B= env\n```"},
		{"input", performed.Command{Argv: []string{"cat"}, Input: []byte("one\nEND\n"), InputSize: 8,
			Exit: exit(0)}, "", "```bash\ncat <<'END_'\none\nEND\nEND_\n```"},
		{"no line", performed.Command{Argv: []string{"cat"}, Input: []byte("x"), InputSize: 1,
			Exit: exit(0)}, "", "```bash\nprintf %s x | cat\n```"},
		{"bytes", performed.Command{Argv: []string{"cat"}, Input: []byte{0}, InputSize: 1,
			Exit: exit(0)}, "", "```bash\nbase64 -d <<'END' | cat\nAA==\nEND\n```"},
		{"builtin", performed.Command{Argv: []string{"cd", "/"}, Exit: exit(0)}, "",
			"```bash\n( exec -- cd / )\n```"},
		{"another user", performed.Command{Argv: []string{"id"}, User: "app:adm", Exit: exit(0)}, "",
			"```bash\nrunuser -u app -g adm -- id\n```"},
		{"the same user", performed.Command{Argv: []string{"id"}, User: "app", Exit: exit(0)}, "app",
			"```bash\nid\n```"},
		{"root of another", performed.Command{Argv: []string{"id"}, User: "root", Exit: exit(0)}, "app",
			"The next step is not repeated: its user differs from that of steps.\n\n" +
				"```bash skip\nid\n```"},
		{"long input", performed.Command{Argv: []string{"cat"}, Input: []byte("x\n"), InputSize: 9,
			Exit: exit(0)}, "", "The next step is not repeated: only the first 2 of 9 bytes of its " +
			"input are kept.\n\n```bash skip\ncat <<'END'\nx\nEND\n```"},
		{"terminal", performed.Command{Argv: []string{"bash"}, Terminal: true, Exit: exit(0)}, "",
			"The next step is not repeated: it ran on a terminal, and what was typed is not kept.\n\n" +
				"```bash skip\nbash\n```"},
		{"cut", performed.Command{Argv: []string{"echo", "x"}, Cut: true, Exit: exit(0)}, "",
			"The next step is not repeated: it is too long to be kept.\n\n" +
				"```bash skip\n# echo x …\n```"},
		{"killed", performed.Command{Argv: []string{"sleep", "9"}, Took: 1600 * time.Millisecond,
			Exit: &wire.ProcessExit{ExitCode: 137, Killed: true}}, "",
			"```bash timeout=2s continue-on-error\nsleep 9\n```"},
		{"step", performed.Command{Script: "a=1\necho `x`\n", Language: "sh", Name: "build",
			Cwd: "/a b", Exit: exit(2)}, "",
			"```sh name=build continue-on-error unparsed\ncd -- '/a b'\na=1\necho `x`\n```"},
		{"fences", performed.Command{Script: "cat <<E\n````\nE\n", Language: "bash", Exit: exit(0)}, "",
			"`````bash\ncat <<E\n````\nE\n`````"},
	} {
		tt.c.Started, tt.c.Ended = began, true
		src, _ := Write([]performed.Command{tt.c}, Options{Title: "x", User: tt.user})
		if got := strings.TrimSpace(strings.TrimPrefix(string(src), "# x\n")); got != tt.want {
			t.Errorf("%s:\n%s\nnot\n%s", tt.name, got, tt.want)
		}
	}
}

// TestBackground checks which commands are started in the background.
func TestBackground(t *testing.T) {
	began := time.Unix(100, 0)
	all := []performed.Command{
		{Argv: []string{"server"}, Started: began, Took: time.Hour, Ended: true,
			Exit: &wire.ProcessExit{ExitCode: 143}},
		{Argv: []string{"true"}, Started: began.Add(time.Second), Took: time.Second, Ended: true,
			Exit: &wire.ProcessExit{}},
		{Argv: []string{"loop"}, Started: began.Add(2 * time.Second), Input: []byte("a"), InputSize: 1},
	}
	src, steps := Write(all, Options{})
	for i, want := range []string{"server &", "true", "{ printf %s a | loop; } &"} {
		doc, err := document.Parse("x.md", src)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.TrimSpace(doc.Steps[i].Script); got != want ||
			steps[i].Background != (i != 1) {
			t.Errorf("step %d: %q, %t", i+1, got, steps[i].Background)
		}
	}
}

// TestTooMany checks that commands that a document cannot have are counted.
func TestTooMany(t *testing.T) {
	all := make([]performed.Command, document.MaxSteps+5)
	for i := range all {
		all[i] = performed.Command{Argv: []string{"true"}, Ended: true, Exit: &wire.ProcessExit{}}
	}
	big := performed.Command{Argv: []string{"echo", strings.Repeat("\x01", maxSize/4)}, Ended: true}
	for _, tt := range []struct {
		all  []performed.Command
		want int
	}{{all, document.MaxSteps}, {[]performed.Command{all[0], big, big, big}, 1}} {
		src, steps := Write(tt.all, Options{Unlisted: 1})
		doc, err := document.Parse("x.md", src)
		if err != nil || len(doc.Steps) != tt.want || len(steps) != tt.want {
			t.Fatalf("%d steps: %v", len(steps), err)
		}
		if more := fmt.Sprintf("not listed: %d.", len(tt.all)-tt.want+1); !strings.Contains(
			string(src), more) {
			t.Errorf("%q is missing", more)
		}
	}
}
