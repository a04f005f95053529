package agent

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/wire"
)

// TestRecords checks that a step's commands are reported, with their places in the script.
func TestRecords(t *testing.T) {
	h := newTracedHarness(t)
	const text = "echo one\nfor i in 1 2; do\n  false \"$i\"\ndone\nprintf x | wc -c\n" +
		"python3 -c 'print(1)' >/dev/null\nexit 4\n"
	r := h.bash(text)
	if r.ExitCode != 4 || r.stdout != "one\n1\n" || r.finished.Untraced != "" ||
		r.finished.StateLost {
		t.Fatalf("%+v %+v", r.ProcessExit, r.finished)
	}
	if int64(len(r.records)) != r.finished.Count || r.finished.Dropped != 0 {
		t.Errorf("%d records of %d", len(r.records), r.finished.Count)
	}
	var lines []string
	for _, rec := range r.records {
		if rec.Span == nil {
			t.Errorf("no span: %+v", rec)
			continue
		}
		code := "?"
		if rec.ExitCode != nil {
			code = fmt.Sprint(*rec.ExitCode)
		}
		lines = append(lines, fmt.Sprintf("%d %s %s %s: %s", rec.Span.Line, rec.Kind, rec.Language,
			code, text[rec.Span.Start:rec.Span.End]))
	}
	all := strings.Join(lines, "\n")
	for _, want := range []string{"1 simple bash 0: echo one", "3 simple bash 1: false \"$i\"",
		"5 simple bash 0: wc -c", "6 simple python 0: python3 -c 'print(1)' >/dev/null",
		"5 pipeline bash 0"} {
		if !strings.Contains(all, want) {
			t.Errorf("no %q in\n%s", want, all)
		}
	}
	for _, s := range r.finished.Sites {
		if s.Text == "false \"$i\"" && (s.Count != 2 || s.Failures != 2) {
			t.Errorf("%+v", s)
		}
	}
	if first := r.records[0]; first.Stdout == nil || first.Stdout.From != 0 ||
		first.Stdout.To != 4 {
		t.Errorf("the output of echo is %+v", first.Stdout)
	}
}

// TestLiveRecords checks that records arrive while the step runs.
func TestLiveRecords(t *testing.T) {
	h := newTracedHarness(t)
	l := h.listen(nil)
	res, err := l.ShellExecute(t.Context(),
		&wire.ShellExecuteParams{Name: "live", Script: "true\nsleep 100\n"})
	if err != nil || !strings.HasSuffix(res.Path, "-live.sh") {
		t.Fatal(res, err)
	}
	if e := next[wire.ShellCommandsEvent](l); e.ProcessID != res.ProcessID || len(e.Records) != 1 ||
		e.Records[0].Text != "true" || e.Records[0].Command != 0 {
		t.Errorf("%+v", e)
	}
	began := time.Now()
	if err := l.ProcessSignal(t.Context(),
		&wire.ProcessSignalParams{ProcessID: res.ProcessID, Signal: "KILL"}); err != nil {
		t.Fatal(err)
	}
	e := next[wire.ShellFinishedEvent](l)
	if !e.Exit.Killed || !e.StateLost || e.Count != 2 || time.Since(began) > time.Minute {
		t.Errorf("%+v", e)
	}
}

// TestManyRecords checks that commands beyond the maximum number of records are counted.
func TestManyRecords(t *testing.T) {
	h := newTracedHarness(t)
	r := h.bash("for ((i = 0; i < 30000; i++)); do :; done; echo done")
	if r.stdout != "done\n" || r.finished.Count < 30000 || r.finished.Dropped < 29000 ||
		len(r.records) > 1000 || len(r.records) < 100 {
		t.Errorf("%q: %d commands, %d dropped, %d records", r.stdout, r.finished.Count,
			r.finished.Dropped, len(r.records))
	}
}

// TestOddScripts checks that any bytes are a script, as they are to bash.
func TestOddScripts(t *testing.T) {
	eachMode(t, func(t *testing.T, harness func(*testing.T) *harness) {
		h := harness(t)
		for _, tt := range []struct{ script, stdout string }{
			{"printf '\xff\xfe' | od -An -tx1", " ff fe\n"},
			{"", ""},
			{"echo a\n" + strings.Repeat("# "+strings.Repeat("x", 100)+"\n", 100_000) +
				"echo b\n", "a\nb\n"},
			{"echo no end <<EOF\nx", "no end\n"},
		} {
			if r := h.bash(tt.script); r.stdout != tt.stdout {
				t.Errorf("%.40q: %q %q", tt.script, r.stdout, r.stderr)
			}
		}
		id := h.NewStream()
		s, err := h.Sender(id)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			chunk := bytes.Repeat([]byte("#"), 1<<20)
			for range 17 {
				if _, err := s.Write(chunk); err != nil {
					return
				}
			}
			_ = s.Close()
		}()
		_, err = h.ShellExecute(t.Context(), &wire.ShellExecuteParams{ScriptStream: id})
		kindIs(t, err, turnstone.KindExhausted)
		s.Abort(nil)
		if r := h.bash("echo on"); r.stdout != "on\n" {
			t.Errorf("%+v", r)
		}
	})
}

// TestStepIsProcess checks that others can list a step and attach to it.
func TestStepIsProcess(t *testing.T) {
	h := newHarness(t)
	l := h.listen(nil)
	res, err := l.ShellExecute(t.Context(), &wire.ShellExecuteParams{ProcessID: "step",
		Script: "echo a; while [ ! -e go ]; do sleep 0.02; done; export B=2; echo b"})
	if err != nil {
		t.Fatal(err)
	}
	other := h.listen(nil)
	if _, err := other.ProcessAttach(t.Context(),
		&wire.ProcessAttachParams{ProcessID: res.ProcessID}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.start(nil, "touch", h.dir+"/workspace/go"); err != nil {
		t.Fatal(err)
	}
	if got := other.collect("step"); got.out["stdout"] != "a\nb\n" || got.exit.Exit.ExitCode != 0 {
		t.Errorf("%+v", got)
	}
	if e := next[wire.ShellFinishedEvent](l); e.ProcessID != "step" || e.StdoutEnd != 4 ||
		e.Untraced == "" {
		t.Errorf("%+v", e)
	}
	s, err := h.StateGetSession(t.Context())
	if err != nil || s.Cwd != h.dir+"/workspace" || !slices.Contains(s.Env, "B=2") {
		t.Errorf("%+v %v", s, err)
	}
	if err := h.StateSetSession(t.Context(), &wire.StateSetSessionParams{Cwd: "/tmp",
		Env: []string{"C=3", "PATH=/bin:/usr/bin", "bad"}}); err != nil {
		t.Fatal(err)
	}
	if r := h.bash("echo $B$C $PWD"); r.stdout != "3 /tmp\n" {
		t.Errorf("%+v", r)
	}
	kindIs(t, h.StateSetSession(t.Context(), &wire.StateSetSessionParams{Cwd: "tmp"}),
		turnstone.KindInvalid)
	kindIs(t, h.StateSetSession(t.Context(),
		&wire.StateSetSessionParams{Env: []string{"X=" + strings.Repeat("x", 2<<20)}}),
		turnstone.KindExhausted)
	_, err = h.ShellExecute(t.Context(), &wire.ShellExecuteParams{Cwd: "rel", Script: "true"})
	kindIs(t, err, turnstone.KindInvalid)
	_, err = h.ShellExecute(t.Context(), &wire.ShellExecuteParams{Language: "zsh", Script: "true"})
	kindIs(t, err, turnstone.KindInvalid)
	if r := h.bash("pwd"); r.stdout != "/tmp\n" {
		t.Errorf("a refused step changed the session: %+v", r)
	}
}

// TestStepsInTurn checks that steps of several connections run one after another.
func TestStepsInTurn(t *testing.T) {
	h := newHarness(t)
	l := h.listen(nil)
	if _, err := l.ShellExecute(t.Context(),
		&wire.ShellExecuteParams{Script: "sleep 0.3; export A=1",
			KillOnDisconnect: true}); err != nil {
		t.Fatal(err)
	}
	if r := h.bash("echo $A"); r.stdout != "1\n" {
		t.Errorf("%+v", r)
	}
	if _, err := l.ShellExecute(t.Context(),
		&wire.ShellExecuteParams{Script: "sleep 100", KillOnDisconnect: true}); err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	if r := h.bash("echo $A"); r.stdout != "1\n" {
		t.Errorf("after a lost connection: %+v", r)
	}
}

func TestParse(t *testing.T) {
	h := newHarness(t)
	res, err := h.ShellParse(t.Context(),
		&wire.ShellParseParams{Script: "a | python3 - <<'E'\nprint(1)\nE\n"})
	if err != nil || len(res.Commands) != 3 || res.Commands[0].Kind != "pipeline" ||
		res.Commands[2].Language != "python" || len(res.Commands[2].Heredocs) != 1 {
		t.Errorf("%+v %v", res, err)
	}
	if res, err = h.ShellParse(t.Context(), &wire.ShellParseParams{Script: ""}); err != nil ||
		res.Commands == nil || len(res.Commands) != 0 {
		t.Errorf("%+v %v", res, err)
	}
}

// TestDirectoryBehindLink checks that a step begins in its predecessor's directory by the name that
// the predecessor used: ".." leads back along symbolic links, as in one shell.
func TestDirectoryBehindLink(t *testing.T) {
	const link = "mkdir -p real/deep && ln -s real/deep short && cd short"
	for name, harness := range map[string]func(*testing.T) *harness{
		"traced": newTracedHarness, "plain": newHarness} {
		for _, language := range []string{"bash", "sh"} {
			t.Run(name+"/"+language, func(t *testing.T) {
				h := harness(t)
				r := h.step(language, "pwd\n")
				top := strings.TrimSuffix(r.stdout, "\n")
				for _, step := range []struct{ script, want string }{
					{link, ""},
					{"pwd; pwd -P", top + "/short\n" + top + "/real/deep\n"},
					{"cd ..; pwd", top + "\n"},
					{"pwd; cd short/; export PWD=/etc", top + "\n"}, // a name that is not true
					{"pwd -P", top + "/real/deep\n"},
					{"cd -P .", ""},
					{"cd ..; pwd", top + "/real\n"},
				} {
					if r := h.step(language, step.script+"\n"); r.stdout != step.want {
						t.Errorf("%s: %q, want %q", step.script, r.stdout, step.want)
					}
				}
			})
		}
	}
}
