package diagnose

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"

	"turnstone.dev/turnstone/internal/lang/syntax"
)

var (
	update = flag.Bool("update", false, "write what is found into the files of testdata")
	record = flag.Bool("record", false,
		"run the tools again and keep what they write; needs all of them")
	pythons = flag.String("pythons", "/opt/pythons",
		"with -record: a directory with one installation of Python for each version")
)

// The location of a step's script and files in a sandbox.
const (
	runDir    = "/run/turn"
	workspace = "/workspace"
)

// A recording is a file of testdata: the scripts of a turn's steps, the last step's standard error
// from real tools, and the expected findings. Its first lines are "key: value": fail names the
// program of the failed command, python a version, tools the commands that print the versions;
// record is "no" for a recording from elsewhere. psql needs a server: PGHOST names it.
type recording struct {
	file    string
	archive *txtar.Archive
	header  map[string]string
	scripts []string
}

func readRecording(file string) (*recording, error) {
	a, err := txtar.ParseFile(file)
	if err != nil {
		return nil, err
	}
	r := &recording{file: file, archive: a, header: map[string]string{}}
	for line := range strings.Lines(string(a.Comment)) {
		if key, value, ok := strings.Cut(line, ": "); ok {
			r.header[key] = strings.TrimSpace(value)
		}
	}
	for _, f := range a.Files {
		if strings.HasPrefix(f.Name, "step") {
			r.scripts = append(r.scripts, string(f.Data))
		}
	}
	return r, nil
}

func (r *recording) get(name string) []byte {
	for _, f := range r.archive.Files {
		if f.Name == name {
			return f.Data
		}
	}
	return nil
}

func (r *recording) set(name string, data []byte) error {
	done := false
	for i := range r.archive.Files {
		if r.archive.Files[i].Name == name {
			r.archive.Files[i].Data, done = data, true
		}
	}
	if !done {
		r.archive.Files = append(r.archive.Files, txtar.File{Name: name, Data: data})
	}
	return os.WriteFile(r.file, txtar.Format(r.archive), 0o644)
}

// shell returns the shell that runs the steps: bash, unless the header says sh.
func (r *recording) shell() string {
	if s := r.header["shell"]; s != "" {
		return s
	}
	return "bash"
}

// steps returns the recording's steps for Find.
func (r *recording) steps() []Step {
	var steps []Step
	for i, s := range r.scripts {
		steps = append(steps, Step{
			Name: fmt.Sprintf("step-%d", i+1),
			Path: fmt.Sprintf("%s/%d.sh", runDir, i+1), Dir: workspace,
			Script: syntax.ParseAs([]byte(s), r.shell()),
		})
	}
	return steps
}

// failure returns the failure of the last step.
func (r *recording) failure(steps []Step) (Failure, error) {
	f := Failure{Command: -1, ExitCode: 1, Stderr: r.get("stderr")}
	if r.header["fail"] == "" {
		return f, nil
	}
	for i, c := range steps[len(steps)-1].Script.Commands {
		text := string(steps[len(steps)-1].Script.Source[c.Span.Start:c.Span.End])
		if c.Kind == syntax.KindSimple && strings.HasPrefix(text, r.header["fail"]) {
			f.Command = i
			return f, nil
		}
	}
	return f, fmt.Errorf("no command runs %s", r.header["fail"])
}

// run runs the steps with this machine's tools, and keeps the last step's standard error, with the
// sandbox's names for its directories.
func (r *recording) run(t *testing.T) {
	work, run := t.TempDir(), t.TempDir()
	env := append(os.Environ(), "LC_ALL=C.UTF-8")
	if v := r.header["python"]; v != "" {
		env = append(env, "PATH="+filepath.Join(*pythons, v, "bin")+":"+os.Getenv("PATH"))
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	start := func(args ...string) []byte {
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		var stderr bytes.Buffer
		cmd.Dir, cmd.Env, cmd.Stderr = work, env, &stderr
		out, _ := cmd.Output() // the failure is recorded
		if args[len(args)-1] == r.header["tools"] {
			return append(out, stderr.Bytes()...)
		}
		return stderr.Bytes()
	}
	var stderr []byte
	for i, s := range r.scripts {
		script := filepath.Join(run, fmt.Sprintf("%d.sh", i+1))
		if err := os.WriteFile(script, []byte(s), 0o644); err != nil {
			t.Fatal(err)
		}
		stderr = start(r.shell(), script)
	}
	stderr = bytes.ReplaceAll(stderr, []byte(work), []byte(workspace))
	stderr = bytes.ReplaceAll(stderr, []byte(run), []byte(runDir))
	stderr = bytes.ReplaceAll(stderr, []byte(*pythons), []byte("/opt/pythons"))
	if len(stderr) == 0 {
		t.Fatal("the step wrote nothing to standard error")
	}
	versions, _, _ := bytes.Cut(start("bash", "-c", r.header["tools"]), []byte("\n\n"))
	if err := r.set("version", append(bytes.TrimSpace(versions), '\n')); err != nil {
		t.Fatal(err)
	}
	if err := r.set("stderr", stderr); err != nil {
		t.Fatal(err)
	}
}

// show formats findings as in the recordings.
func show(steps []Step, found []Finding) string {
	var b strings.Builder
	place := func(step int, s syntax.Span) string {
		text := string(steps[step].Script.Source[s.Start:s.End])
		return fmt.Sprintf("step %d, %d:%d-%d:%d %q", step+1, s.Line, s.Column,
			s.EndLine, s.EndColumn, text)
	}
	for _, f := range found {
		fmt.Fprintf(&b, "%s: %s\n  %s\n", f.Tool, f.Message, place(f.Step, f.Span))
		for _, frame := range f.Frames {
			fmt.Fprintf(&b, "  by %s\n", place(frame.Step, frame.Span))
		}
	}
	if len(found) == 0 {
		return "nothing\n"
	}
	return b.String()
}

// TestRecordings checks the findings for real output of real tools.
func TestRecordings(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 40 {
		t.Errorf("only %d recordings", len(files))
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			r, err := readRecording(file)
			if err != nil {
				t.Fatal(err)
			}
			if *record && r.header["record"] != "no" {
				r.run(t)
			}
			steps := r.steps()
			f, err := r.failure(steps)
			if err != nil {
				t.Fatal(err)
			}
			found := Steps(steps).Find(len(steps)-1, f)
			check(t, steps, found)
			got := show(steps, found)
			if *update {
				if err := r.set("want", []byte(got)); err != nil {
					t.Fatal(err)
				}
			}
			if want := string(r.get("want")); got != want {
				t.Errorf("found\n%swant\n%s", got, want)
			}
		})
	}
}
