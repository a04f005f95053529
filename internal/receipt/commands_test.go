package receipt

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/guest/trace"
	"turnstone.dev/turnstone/wire"
)

// native runs a step with this host's bash, traced, and returns the report that a sandbox's agent
// would send.
func native(t *testing.T, step *document.Step) (*wire.StepEnd, []wire.ShellRecord, *capture) {
	t.Helper()
	tracer, err := trace.New()
	if err != nil {
		t.Fatal(err)
	}
	defer tracer.Close()
	rec, err := tracer.Record([]string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C"})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	path := filepath.Join(dir, step.Name+".sh")
	if err := os.WriteFile(path, []byte(step.Script), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("bash", path)
	cmd.Dir, cmd.Env, cmd.ExtraFiles = dir, rec.Env(), rec.Files()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	rec.Started(cmd.Process.Pid)
	_ = w.Close()
	stderr := newCapture("", "", "", nil)
	buf := make([]byte, 4096)
	for {
		rec.Reading(2)
		n, err := r.Read(buf)
		rec.Read(2, n)
		_, _ = stderr.Write(buf[:n])
		if err != nil {
			break
		}
	}
	_ = r.Close()
	_ = cmd.Wait()
	rep := rec.Finish(cmd.ProcessState.ExitCode())
	end := &wire.StepEnd{Path: path}
	end.Exit.ExitCode = int64(cmd.ProcessState.ExitCode())
	end.Count, end.Dropped, end.Untraced = rep.Commands, rep.Dropped, rep.Untraced
	var records []wire.ShellRecord
	for i := range rep.Records {
		records = append(records, rep.Records[i].ToWire(nil))
	}
	for i := range rep.Sites {
		end.Sites = append(end.Sites, rep.Sites[i].ToWire())
	}
	return end, records, stderr
}

func analyseText(t *testing.T, text string) (*document.Document, *commands) {
	t.Helper()
	doc := parse(t, text)
	s := parseScripts(doc, nil)
	var c *commands
	for _, step := range doc.Steps {
		end, records, stderr := native(t, step)
		stderr.finish()
		c = s.analyse(step, end, records, stderr, "/", true)
	}
	return doc, c
}

// Failures are reported with the document's lines, whatever is around the step.
func TestFailures(t *testing.T) {
	for name, tt := range map[string]struct {
		doc  string
		want []string // line:column text exit tool: message @ the error's line
	}{
		"a command that fails": {"# T\n\n```bash\necho a\nls /nonexistent-x\n```\n", []string{
			"5:1 ls /nonexistent-x 2 ls: cannot access '/nonexistent-x': No such file or directory @5"}},
		"in a list": {"- item\n\n  ```bash\n  true; exit 3\n  ```\n", []string{"4:9 exit 3 3 :  @0"}},
		"conditions do not fail": {"```bash\nset -e\nif false; then :; fi\nfalse || true\n! true || grep -q x /dev/null\n```\n", []string{
			"5:11 grep -q x /dev/null 1 :  @0"}},
		"a function's command":  {"```bash\nf() {\n  false\n}\nf\n```\n", []string{"3:3 false 1 :  @0"}},
		"a stage of a pipeline": {"```bash\nset -o pipefail\necho x | grep y | cat\n```\n", []string{"3:10 grep y 1 :  @0"}},
		"not found":             {"```bash\nnosuchprogram-x --y\n```\n", []string{"2:1 nosuchprogram-x --y 127 bash: nosuchprogram-x: command not found @2"}},
		"python in a here-document": {"text\n\n```bash\npython3 - <<'EOF'\nx = 1\nprint(x / 0)\nEOF\n```\n", []string{
			"4:1 python3 - <<'EOF' 1 python: ZeroDivisionError: division by zero @6"}},
		"two steps, the file of the first": {"```bash\ncat > /tmp/turnstone-test-a.py <<'EOF'\n\n1/0\nEOF\n```\n\n```bash\npython3 /tmp/turnstone-test-a.py\n```\n", []string{
			"9:1 python3 /tmp/turnstone-test-a.py 1 python: ZeroDivisionError: division by zero @4"}},
		"unbound": {"```bash\nset -u\necho $nosuch\n```\n", []string{"3:1 echo $nosuch 1 bash: nosuch: unbound variable @3"}},
	} {
		t.Run(name, func(t *testing.T) {
			if strings.Contains(tt.doc, "python3") {
				if _, err := exec.LookPath("python3"); err != nil {
					t.Skip("no python3 here")
				}
			}
			_, c := analyseText(t, tt.doc)
			var got []string
			for _, f := range c.failures {
				at, fault := turnstone.Place{}, 0
				if f.Place != nil {
					at = *f.Place
				}
				if f.Fault != nil {
					fault = f.Fault.Line
				}
				got = append(got, fmt.Sprintf("%d:%d %s %d %s: %s @%d", at.Line, at.Column,
					strings.SplitN(f.Text, "\n", 2)[0], f.ExitCode, f.Tool, f.Message, fault))
			}
			if strings.Join(got, "\n") != strings.Join(tt.want, "\n") {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(tt.want, "\n"))
			}
		})
	}
}

// The command data in --json is complete: every run with its place.
func TestCommandReports(t *testing.T) {
	doc, c := analyseText(t,
		"```bash\nfor i in 1 2; do\n  echo $i | cat\ndone\ngrep -c x <<EOF\nx\nEOF\n```\n")
	if c.report.Untraced != "" {
		t.Fatal(c.report.Untraced)
	}
	seen := map[string]int{}
	for _, r := range c.reports {
		if r.Place == nil {
			t.Errorf("%s has no place", r.Text)
			continue
		}
		seen[r.Text]++
		if line := strings.Split(string(doc.Source),
			"\n")[r.Place.Line-1]; !strings.HasPrefix(line[r.Place.Column-1:],
			strings.SplitN(r.Text, "\n", 2)[0]) {
			t.Errorf("%q does not stand at %+v", r.Text, *r.Place)
		}
	}
	for text, n := range map[string]int{"echo $i": 2, "cat": 2, "echo $i | cat": 2} {
		if seen[text] != n {
			t.Errorf("%q ran %d times, %d are told (%v)", text, n, seen[text], seen)
		}
	}
	b, err := json.Marshal(c.reports)
	if err != nil || !bytes.Contains(b, []byte(`"kind":"heredoc","text":"x\n"`)) {
		t.Errorf("%v: %s", err, b)
	}
	if len(c.table) == 0 || c.table[0].Line != 3 || c.table[0].Count != 2 {
		t.Errorf("%+v", c.table)
	}
}

// A sandbox's report of its step's commands is untrusted: no position in it leads outside the
// document.
func FuzzAnalyse(f *testing.F) {
	f.Add([]byte(`{"records":[{"id":0,"parent":-1,"site":0,"kind":"simple","text":"echo a","line":1,"exitCode":1,"stderr":{"from":0,"to":9}}],"end":{"sites":[{"id":0,"kind":"simple","text":"echo a","line":1,"count":3}],"exit":{"exitCode":1}}}`),
		[]byte("step.sh: line 1: x: command not found\n"))
	f.Fuzz(func(t *testing.T, said, stderr []byte) {
		var in struct {
			Records []wire.ShellRecord
			End     wire.ShellFinishedEvent
		}
		if json.Unmarshal(said, &in) != nil {
			return
		}
		doc, err := document.Parse("doc.md",
			[]byte("```bash\necho a\nf() { python3 -c 'x'; }\nf | cat <<E\nx\nE\n```\n"))
		if err != nil {
			t.Fatal(err)
		}
		s := parseScripts(doc, nil)
		out := newCapture("", "", "", nil)
		_, _ = out.Write(stderr)
		out.finish()
		c := s.analyse(doc.Steps[0], &wire.StepEnd{ShellFinishedEvent: in.End, Path: "step.sh"},
			in.Records, out, "/", true)
		for _, r := range c.reports {
			if r.Place != nil && (r.Place.Line < 1 || r.Place.Line > 8) {
				t.Fatalf("%+v", r)
			}
		}
		if _, err := json.Marshal(c.reports); err != nil {
			t.Fatal(err)
		}
	})
}

// The failure that ended a step is shown, however many commands failed before.
func TestDecisiveFailure(t *testing.T) {
	_, c := analyseText(t, "```bash\nfalse\nfalse\nfalse\nfalse\nfalse\nfalse\nexit 7\n```\n")
	if len(c.shown) != 7 || c.shown[0].Text != "exit 7" || c.shown[1].Line != 2 ||
		c.failures[6].ExitCode != 7 {
		t.Errorf("%+v", c.shown)
	}
}
