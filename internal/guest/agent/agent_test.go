package agent

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"turnstone.dev/turnstone/internal/leaktest"
	"turnstone.dev/turnstone/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(leaktest.Patient(m)) }

// harness is an agent in this process's root, with a client.
type harness struct {
	*wire.Client
	t     *testing.T
	a     *Agent
	link  *wire.Link
	dir   string
	trace bool   // of steps
	user  string // of steps; empty: root
}

func newHarness(t *testing.T) *harness {
	t.Helper()
	return newHarnessWith(t, Options{})
}

// newTracedHarness returns a harness whose steps are traced, if the tracer has been built.
func newTracedHarness(t *testing.T) *harness {
	t.Helper()
	tracing := NewTracing()
	t.Cleanup(tracing.Close)
	if err := tracing.check(bashPath); err != nil {
		t.Skipf("no tracer: %v", err)
	}
	h := newHarnessWith(t, Options{Tracing: tracing})
	h.trace = true
	return h
}

func newHarnessWith(t *testing.T, opt Options) *harness {
	t.Helper()
	dir := t.TempDir()
	opt.RunDir, opt.Cwd = filepath.Join(dir, "run"), filepath.Join(dir, "workspace")
	a, err := New(opt)
	if err != nil {
		t.Fatal(err)
	}
	h := serve(t, a)
	h.dir = dir
	return h
}

// serve serves an agent, and returns a client of it.
func serve(t *testing.T, a *Agent) *harness {
	t.Helper()
	near, far := net.Pipe()
	served := make(chan error, 1)
	go func() { served <- a.Serve(context.Background(), far) }()
	link, err := wire.NewLink(near, true)
	if err != nil {
		t.Fatal(err)
	}
	h := &harness{t: t, a: a, link: link}
	t.Cleanup(func() {
		_ = link.Close()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
		if err := a.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	h.Client = h.connect()
	return h
}

// connect opens another connection.
func (h *harness) connect() *wire.Client {
	h.t.Helper()
	c := wire.NewClient(h.open())
	h.t.Cleanup(func() { _ = c.Close(); c.Wait() })
	return c
}

func (h *harness) open() wire.LinkStream {
	h.t.Helper()
	s, err := h.link.Open()
	if err != nil {
		h.t.Fatal(err)
	}
	return s
}

// ran is one step's result.
type ran struct {
	wire.ProcessExit
	stdout, stderr string
	finished       *wire.StepEnd
	records        []wire.ShellRecord
}

func (h *harness) bash(script string) ran { h.t.Helper(); return h.step("bash", script) }

func (h *harness) step(language, script string) ran {
	h.t.Helper()
	var stdout, stderr bytes.Buffer
	var r ran
	var mu sync.Mutex
	ctx, cancel := context.WithTimeout(h.t.Context(), 2*time.Minute)
	defer cancel()
	fin, err := h.Execute(ctx, wire.ShellExecuteParams{Name: "s",
		Language: wire.ShellExecuteLanguage(language), Trace: &h.trace, User: h.user},
		script, wire.Stdio{Out: &stdout, Err: &stderr}, func(records []wire.ShellRecord) {
			mu.Lock()
			defer mu.Unlock()
			r.records = append(r.records, records...)
		})
	if err != nil {
		h.t.Fatalf("execute %q: %v", script, err)
	}
	mu.Lock()
	defer mu.Unlock()
	r.ProcessExit, r.stdout, r.stderr, r.finished = fin.Exit, stdout.String(), stderr.String(), fin
	return r
}

// eachMode runs a test with traced steps, and with untraced steps.
func eachMode(t *testing.T, f func(t *testing.T, harness func(*testing.T) *harness)) {
	t.Run("untraced", func(t *testing.T) { f(t, newHarness) })
	t.Run("traced", func(t *testing.T) { f(t, newTracedHarness) })
}

// carried are scripts, and the state that a later step sees.
var carried = []struct {
	name, script string
	exit         int64
	check        string // a second step's script
	want         string // its output
}{
	{"export", "export A='x y'", 0, `echo "$A"`, "x y\n"},
	{"not exported", "A=1", 0, `echo "${A-unset}"`, "unset\n"},
	{"several lines", "export A=$'1\\n2\\n'", 0, `printf %s "$A"`, "1\n2\n"},
	{"empty", "export A=", 0, `echo "${A-unset}|"`, "|\n"},
	{"exported, not set", "export A", 0, `echo "${A-unset}"`, "unset\n"},
	{"unset", "unset LANG", 0, `echo "${LANG-unset}"`, "unset\n"},
	{"bytes", "export A=$'\\xff\\x01\\'\"'", 0, `printf %s "$A" | od -An -tx1`, " ff 01 27 22\n"},
	{"array", "declare -ax A=(1 2)", 0, `echo "${A-unset}"`, "unset\n"},
	{"exit in the middle", "export A=1; exit 7; export A=2", 7, `echo $A`, "1\n"},
	{"errexit", "set -e; export A=1; false; export A=2", 1, `echo $A`, "1\n"},
	{"nounset", "set -u; export A=1; echo $NOPE; export A=2", 1, `echo $A`, "1\n"},
	{"closed stdout", "exec >&-; export A=1", 0, `echo $A`, "1\n"},
	{"closed all", "exec <&- >&- 2>&-; export A=1", 0, `echo $A`, "1\n"},
	{"readonly", "readonly A=1; export A; readonly IFS=x", 0, `echo $A`, "1\n"},
	{"noclobber", "set -C; export A=1", 0, `echo $A`, "1\n"},
	{"allexport", "set -a; A=1; f() { :; }", 0, `echo $A; env | grep -c __turn; declare -F`,
		"1\n0\ndeclare -f __turn_exit\ndeclare -fx f\n"},
	{"posix", "set -o posix; export A=1", 0, `echo $A`, "1\n"},
	{"odd IFS", "IFS=_; export A_B=1_2", 0, `echo "$A_B"`, "1_2\n"},
	{"nocasematch, failglob", "shopt -s nocasematch failglob extglob; export A='*x*'",
		0, `echo "$A"`, "*x*\n"},
	{"cd", "mkdir -p /tmp/turn-a; cd /tmp/turn-a", 0, `pwd; rmdir /tmp/turn-a`, "/tmp/turn-a\n"},
	{"cd, newline", "mkdir -p $'/tmp/turn\\n\\n'; cd $'/tmp/turn\\n\\n'", 0,
		`printf %q "$PWD"; rmdir "$PWD"`, `$'/tmp/turn\n\n'`},
	{"cd, then exit", "cd /tmp; exit 3", 3, `pwd`, "/tmp\n"},
	{"cd to a deleted folder", "mkdir -p /tmp/turn-b; cd /tmp/turn-b; rmdir /tmp/turn-b", 0,
		`pwd; ls; rmdir /tmp/turn-b`, "/tmp/turn-b\n"},
	{"function", "f() { echo \"f $1\"; cat <<EOF\nbody\nEOF\n}; export -f f",
		0, `f 1; bash -c 'f 2'`, "f 1\nbody\nf 2\nbody\n"},
	{"functions", "g() { echo g; }; h() { echo h; } 2>&1; export -f g h", 0, `g; h`, "g\nh\n"},
	{"own trap", "export A=1; trap 'export A=2; true' EXIT", 0, `echo $A`, "1\n"},
	{"exec replaces", "export A=1; exec true", 0, `echo "${A-unset}"`, "unset\n"},
	{"killed", "export A=1; kill -9 $$", 137, `echo "${A-unset}"`, "unset\n"},
	{"own BASH_ENV", "echo 'echo env' >/tmp/turn-env; export BASH_ENV=/tmp/turn-env", 0,
		`bash -c 'echo in'; echo $BASH_ENV; rm /tmp/turn-env`, "env\nenv\nin\n/tmp/turn-env\n"},
	{"subshell exits", "export A=1; (export A=2; exit 4); (trap 'echo no >/dev/null' EXIT); :", 0,
		`echo $A`, "1\n"},
	{"OLDPWD", "cd /; cd /tmp", 0, `cd - >/dev/null; pwd`, "/\n"},
	{"PATH", "export PATH=/opt/bin:$PATH", 0, `echo ${PATH%%:*}`, "/opt/bin\n"},
	{"shell level", ":", 0, `echo $SHLVL`, "1\n"},
	{"builtin is a function", "builtin() { :; }; export A=1", 0, `echo "${A-unset}"`, "unset\n"},
	{"syntax error", "export A=1\nif (", 2, `echo $A`, "1\n"},
}

func TestSession(t *testing.T) { eachMode(t, testSession) }

func testSession(t *testing.T, harness func(*testing.T) *harness) {
	for _, tt := range carried {
		t.Run(tt.name, func(t *testing.T) {
			h := harness(t)
			if r := h.bash(tt.script); r.ExitCode != tt.exit {
				t.Errorf("exit %d, want %d; stderr: %s", r.ExitCode, tt.exit, r.stderr)
			}
			want := tt.want
			if better, ok := carriedTraced[tt.name]; ok && h.trace {
				want = better
			}
			if r := h.bash(tt.check); r.stdout != want {
				t.Errorf("the next step printed %q, want %q; stderr: %s", r.stdout, want, r.stderr)
			}
		})
	}
}

// carriedTraced are outputs that differ if the earlier step is traced: the state is then that at
// the shell's end, and does not depend on the script's shell.
var carriedTraced = map[string]string{
	"allexport":             "1\n0\ndeclare -fx f\n",
	"own trap":              "2\n",
	"builtin is a function": "1\n",
}

func TestSessionOfSh(t *testing.T) {
	for _, tt := range []struct{ name, script, check, want string }{
		{"export", "export A='x\ny'", `echo "$A"`, "x\ny\n"},
		{"exit", "export A=1; cd /tmp; exit 3", `echo $A; pwd`, "1\n/tmp\n"},
		{"errexit", "set -eu; export A=1; false", `echo $A`, "1\n"},
		{"trap", "export A=1; trap 'echo $? >/dev/null' EXIT; exit 3", `echo $A`, "1\n"},
		{"zero", "echo $0 | grep -c '/[0-9]*-s.sh$'; trap - 0; export A=2", `echo $A`, "2\n"},
		{"return", "export A=2; return 3", `echo $A`, "2\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHarness(t)
			h.step("sh", tt.script)
			if r := h.step("sh", tt.check); r.stdout != tt.want {
				t.Errorf("sh printed %q, want %q; stderr: %s", r.stdout, tt.want, r.stderr)
			}
			if r := h.bash(tt.check); r.stdout != tt.want {
				t.Errorf("bash printed %q, want %q; stderr: %s", r.stdout, tt.want, r.stderr)
			}
		})
	}
	h := newHarness(t)
	h.bash("f() { echo f; }; export -f f")
	h.step("sh", "export A=1")
	if r := h.bash("f; echo $A"); r.stdout != "f\n1\n" {
		t.Errorf("functions after sh: %q", r.stdout)
	}
}

// TestPlainBash compares steps with "bash script": output, error output, status.
func TestPlainBash(t *testing.T) { eachMode(t, testPlainBash) }

func testPlainBash(t *testing.T, harness func(*testing.T) *harness) {
	for _, script := range []string{
		"echo $0 | sed 's,.*/,,'; echo $#; echo ${BASH_ENV-none}; echo $LINENO; env | grep -c " +
			"BASH_ENV",
		"set -x; echo a; (exit 3); echo $?",
		"set -e; trap 'echo bye $?; false; echo no' EXIT; (exit 3); echo never",
		"trap 'echo bye $?' EXIT; exit 5",
		"trap 'exit 9' EXIT; exit 5",
		"trap 'echo a; echo b # c' EXIT\ntrap -p\ntrap\ntrap -p EXIT INT",
		"trap 'echo a' EXIT; trap - EXIT; trap; echo ${?}",
		"trap 'echo a' 0 INT; trap INT; trap; trap 0; trap",
		"trap -- 'echo it'\\''s' exit; x=$(trap -p EXIT); echo \"$x\"; eval \"$x\"",
		"trap '' EXIT; trap; trap -- '' TERM; trap",
		"trap 'echo outer' EXIT; (trap 'echo inner' EXIT; echo in); (trap; exit 2); echo $?",
		"f() { trap 'echo f' EXIT; }; f; echo x",
		"set -x; trap 'echo a' EXIT; echo b",
		"true\ntrap 'echo $LINENO' EXIT\ntrue",
		"set -eu; trap 'echo $LINENO >/dev/null; echo e' ERR EXIT; false",
		"trap 'echo usr' USR1; kill -USR1 $$; trap 'echo x' EXIT; trap -p USR1",
		"trap 'cat <<EOF\nhere $?\nEOF' EXIT; exit 4",
		"trap exit INT; trap 'echo q' EXIT; kill -INT $$; echo no",
		"trap EXIT; echo $?; trap -l | head -1; trap - FOO 2>/dev/null; echo $?",
		"exec >&-; echo a; echo b >&2",
		"exec 2>&-; trap 'echo a' EXIT; ls /nope",
		"type cd; alias; shopt -p expand_aliases; echo $-; set -o | head -3",
		"if [[ x = x ]]; then\n  echo 'open\n",
		"printf 'a\\0b\\xff\\n'; read x; echo \"r=$? [$x]\"",
		"set -o errexit -o pipefail; false | true; echo no",
		"exec bash -c 'echo replaced; exit 6'",
		"kill -TERM $$",
		"return 3; echo after",
		"(sleep 0.01; echo bg) & wait; echo done",
		"coproc cat; echo hi >&${COPROC[1]}; read -u ${COPROC[0]} l; echo $l; kill $COPROC_PID; " +
			"wait 2>/dev/null; exit 0",
		"set -f; set -- 'a b' c; trap 'echo \"$# $1\"' EXIT",
	} {
		h := harness(t)
		got := h.bash(script)
		dir := t.TempDir()
		file := filepath.Join(dir, "1-s.sh")
		if err := os.WriteFile(file, []byte(script), 0o644); err != nil {
			t.Fatal(err)
		}
		stdout, stderr, code := plain(t, dir, defaultEnv(), "/bin/bash", file)
		norm := func(s, path string) string { return strings.ReplaceAll(s, path, "SCRIPT") }
		path := filepath.Join(h.dir, "run", "1-s.sh")
		if got.ExitCode != code || norm(got.stdout, path) != norm(stdout, file) ||
			norm(got.stderr, path) != norm(stderr, file) {
			t.Errorf("script %q\n got %d %q %q\nwant %d %q %q", script,
				got.ExitCode, norm(got.stdout, path), norm(got.stderr, path), code,
				norm(stdout, file), norm(stderr, file))
		}
	}
}
