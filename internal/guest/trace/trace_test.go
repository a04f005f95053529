package trace

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"sort"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/lang/syntax"
)

func TestExitCodes(t *testing.T) {
	res := traced(t, `false
sh -c 'exit 7'
(exit 3)
sh -c 'kill -KILL $$' 2>/dev/null
nonexistent_program 2>/dev/null
! true
f() { return 9; }
f
`)
	for words, want := range map[string]int{"false": 1, "sh -c 'exit 7'": 7, "exit 3": 3,
		"sh -c 'kill": 137, "nonexistent": 127, "true": 1, "return 9": 9} {
		if r := res.one(t, words); !r.Flags.Exited || r.Exit != want {
			t.Errorf("%s: exit %d, %+v; want %d", words, r.Exit, r.Flags, want)
		}
	}
	if !res.one(t, "true").Flags.Negated {
		t.Error("! true is not negated")
	}
	if !res.one(t, "sh -c 'exit").Flags.Program || res.one(t, "false").Flags.Program ||
		res.one(t, "nonexistent").Flags.Program {
		t.Error("what became a program is wrong")
	}
	if res.exit != 9 {
		t.Errorf("exit %d", res.exit)
	}
}

func TestPipeline(t *testing.T) {
	for _, set := range []string{"", "set -o pipefail; ", "shopt -s lastpipe; "} {
		res := traced(t, set+`(exit 3) | sh -c 'cat; exit 4' | { cat; exit 5; } | `+
			`sh -c 'kill -TERM $$' | true
true`)
		stages := map[string]int{"exit 3": 3, "sh -c 'cat": 4, "exit 5": 5, "sh -c 'kill": 143}
		for words, want := range stages {
			if r := res.one(t, words); r.Exit != want || !r.Flags.Exited {
				t.Errorf("%s%s: exit %d %+v, want %d", set, words, r.Exit, r.Flags, want)
			}
		}
		var pipe Record
		for _, r := range res.report.Records {
			if r.Kind == syntax.KindPipeline {
				pipe = r
			}
		}
		n := 0
		for _, r := range res.report.Records {
			if r.Parent == pipe.ID && (r.Flags.PipeIn || r.Flags.PipeOut) {
				n++
				want := map[syntax.Kind]int{syntax.KindSubshell: 3, syntax.KindGroup: 5}
				if w, ok := want[r.Kind]; ok && r.Exit != w {
					t.Errorf("%s%s stage: exit %d, want %d", set, r.Kind, r.Exit, w)
				}
			}
		}
		if n != 5 {
			t.Errorf("%s%d stages, want 5", set, n)
		}
		want := map[bool]int{true: 143, false: 0}[strings.Contains(set, "pipefail")]
		if pipe.Exit != want {
			t.Errorf("%sthe pipeline's exit is %d, want %d", set, pipe.Exit, want)
		}
		if last := res.find("true"); len(last) != 2 || last[0].Exit != 0 {
			t.Errorf("%sthe last stage: %+v", set, last)
		}
	}
}

func TestAsync(t *testing.T) {
	res := traced(t, `sh -c 'sleep 0.1; exit 3' &
sleep 0.05 | sh -c 'cat; exit 6' &
{ sleep 0.02; exit 4; } &
true && sh -c 'exit 5' &
wait
sleep 60 >/dev/null 2>&1 &
`)
	for words, want := range map[string]int{"sh -c 'sleep": 3, "sh -c 'cat": 6,
		"sh -c 'exit 5": 5} {
		if r := res.one(t, words); r.Exit != want || !r.Flags.Exited || r.Flags.Unfinished {
			t.Errorf("%s: %+v, want exit %d", words, r, want)
		}
	}
	if r := res.one(t, "sh -c 'sleep"); !r.Flags.Async || r.Duration < 100*time.Millisecond {
		t.Errorf("background command: %+v", r)
	}
	for _, r := range res.report.Records {
		want := map[syntax.Kind]int{syntax.KindPipeline: 6, syntax.KindGroup: 4, syntax.KindList: 5}
		if w, ok := want[r.Kind]; ok && (r.Exit != w || r.Flags.Unfinished || !r.Flags.Async) {
			t.Errorf("%s: %+v, want exit %d", r.Kind, r, w)
		}
	}
	if r := res.one(t, "sleep 60"); !r.Flags.Unfinished || r.Flags.Exited {
		t.Errorf("what runs on: %+v", r)
	}
}

func TestLeft(t *testing.T) {
	res := traced(t, `f() { if true; then for i in 1; do return 4; done; fi; }
f
(: ${nope:?gone}) 2>/dev/null
(set -e; { sh -c 'exit 8'; echo no; }; echo no)
( kill -9 $BASHPID )
while true; do exit 6; done
`)
	for words, want := range map[string]int{"return 4": 4, "f": 4, "exit 6": 6, "sh -c": 8} {
		for _, r := range res.find(words) {
			if r.Kind == syntax.KindSimple && (r.Exit != want || !r.Flags.Exited ||
				r.Flags.Unfinished) {
				t.Errorf("%s: %+v, want exit %d", words, r, want)
			}
		}
	}
	for _, words := range []string{"return 4", "exit 6", ": ${nope", "kill -9", "sh -c"} {
		if !res.one(t, words).Flags.Left {
			t.Errorf("%s is said to have returned", words)
		}
	}
	if r := res.one(t, "kill -9"); r.Exit != 137 || !r.Flags.Signaled || r.Flags.Unfinished {
		t.Errorf("killed subshell: %+v", r)
	}
	if r := res.one(t, ": ${nope"); r.Exit == 0 {
		t.Errorf("a failed expansion: %+v", r)
	}
	for _, r := range res.report.Records {
		if r.Kind == syntax.KindWhile && (r.Exit != 6 || !r.Flags.Left) {
			t.Errorf("loop that exit left: %+v", r)
		}
	}
}

func TestReplacedAndKilled(t *testing.T) {
	res := tracedAnyhow(t, "echo a\nexec sh -c 'exit 5'\n")
	if !strings.Contains(res.report.Untraced, `replaced by "/`) || res.report.State != nil {
		t.Errorf("replaced: %q, state %v", res.report.Untraced, res.report.State)
	}
	if r := res.one(t, "exec"); r.Exit != 5 || r.Flags.Unfinished || !r.Flags.Program {
		t.Errorf("exec: %+v", r)
	}
	res = traced(t, "echo a\nwhile true; do kill -9 $$; done\n")
	if res.report.State != nil || res.exit != 137 {
		t.Errorf("killed: exit %d, state %v", res.exit, res.report.State)
	}
	if r := res.one(t, "kill"); r.Exit != 137 || !r.Flags.Left {
		t.Errorf("kill: %+v", r)
	}
	res = traced(t, "shopt -s execfail; exec /nonexistent 2>/dev/null; exit 3\n")
	if res.report.State == nil || res.exit != 3 {
		t.Errorf("failed exec: %+v", res.report)
	}
}

func TestRanges(t *testing.T) {
	res := traced(t, `echo first
printf 'error' >&2
{ echo hidden; } >/dev/null
for i in 1 2; do echo "n $i"; sh -c 'echo ext; echo err >&2'; done
head -c 200000 /dev/zero
echo piped | cat
echo to file > f
`)
	out, errs := res.stdout, res.stderr
	check := func(r Record, wantOut, wantErr string) {
		t.Helper()
		if !r.Stdout.Known || !r.Stderr.Known {
			t.Errorf("%s: unknown ranges %+v", r.Words, r)
			return
		}
		if got := out[r.Stdout.Start:r.Stdout.End]; got != wantOut {
			t.Errorf("%s: wrote %.50q, want %.50q", r.Words, got, wantOut)
		}
		if got := errs[r.Stderr.Start:r.Stderr.End]; got != wantErr {
			t.Errorf("%s: wrote %q to stderr, want %q", r.Words, got, wantErr)
		}
	}
	check(res.one(t, "echo first"), "first\n", "")
	check(res.one(t, "printf"), "", "error")
	check(res.one(t, "echo to"), "", "")
	check(res.one(t, "head"), strings.Repeat("\x00", 200000), "")
	for i, r := range res.find(`echo "n`) {
		check(r, fmt.Sprintf("n %d\n", i+1), "")
	}
	for _, r := range res.find("sh -c") {
		check(r, "ext\n", "err\n")
	}
	check(res.one(t, "cat"), "piped\n", "")
	if r := res.one(t, "echo hidden"); r.Stdout.Known || !r.Stderr.Known {
		t.Errorf("redirected: %+v", r)
	}
	if r := res.one(t, "echo piped"); r.Stdout.Known {
		t.Errorf("stage: %+v", r)
	}
	for _, r := range res.report.Records {
		if r.Kind == syntax.KindFor {
			check(r, "n 1\next\nn 2\next\n", "err\nerr\n")
		}
	}
}

func TestStdin(t *testing.T) {
	big := strings.Repeat("0123456789abcde\n", 1000)
	huge := strings.Repeat("x", 70000)
	res := traced(t, `x=value
cat <<E
x is $x
E
read a <<'E'
raw $x
E
read b <<<"plain words"
wc <<<"$x"
md5sum <<'E'
`+big+`E
sha1sum <<'E'
`+huge+`
E
echo in file > f
sort < f
echo a | cut -c1
sum 0<&-
true
while read l; do :; done < f
sha256sum < /dev/null
`)
	for words, want := range map[string]string{"cat": "x is value\n", "read a": "raw $x\n",
		"read b": "plain words\n", "wc": "value\n"} {
		if r := res.one(t, words); r.Stdin.Source != Heredoc || string(r.Stdin.Bytes) != want ||
			r.Stdin.Size != int64(len(want)) {
			t.Errorf("%s: %+v, want %q", words, r.Stdin, want)
		}
	}
	if in := res.one(t, "md5sum").Stdin; in.Source != Heredoc ||
		in.Digest != turnstone.DigestBytes([]byte(big)) || in.Bytes != nil ||
		in.Size != int64(len(big)) {
		t.Errorf("larger document: %+v", in)
	}
	if in := res.one(t, "sha1sum").Stdin; in.Source != Heredoc || in.Digest != "" ||
		in.Bytes != nil || in.Size != int64(len(huge)+1) {
		t.Errorf("huge document: %+v", in)
	}
	if in := res.one(t, "sort").Stdin; in.Source != File || string(in.Bytes) != "in file\n" {
		t.Errorf("file: %+v", in)
	}
	for words, want := range map[string]Source{"cut": Pipe, "sum": Other, "true": Inherited,
		"echo a": Inherited, "sha256sum": File, "l": File} {
		for _, r := range res.find(words) {
			if (r.Kind == syntax.KindSimple || r.Kind == syntax.KindWhile) &&
				r.Stdin.Source != want {
				t.Errorf("%s: %+v, want %s", words, r.Stdin, want)
			}
		}
	}
	if len(res.find("sha256sum")[0].Stdin.Bytes) != 0 || res.find("sha256sum")[0].Stdin.Size != -1 {
		t.Errorf("device: %+v", res.find("sha256sum")[0].Stdin)
	}
}

func TestCaps(t *testing.T) {
	res := traced(t, `for ((i=0; i<1000; i++)); do (( i % 10 )); done
for ((i=0; i<300; i++)); do /bin/false; done
`)
	var arith, ext Site
	for _, s := range res.report.Sites {
		switch {
		case s.Kind == syntax.KindArithmetic:
			arith = s
		case s.Words == "/bin/false":
			ext = s
		}
	}
	if arith.Count != 1000 || arith.Failures != 100 {
		t.Errorf("arithmetic: %+v", arith)
	}
	if ext.Count != 300 || ext.Failures != 300 || ext.Time <= 0 {
		t.Errorf("external: %+v", ext)
	}
	if n := len(res.find("/bin/false")); n != maxPerSite {
		t.Errorf("%d records, want %d", n, maxPerSite)
	}
	if r := res.report; r.Commands != 1302 || r.Dropped != 1302-int64(len(r.Records)) {
		t.Errorf("%d commands, %d dropped, %d records", r.Commands, r.Dropped, len(r.Records))
	}
}

func TestManySites(t *testing.T) {
	res := traced(t, `for ((i=0; i<6000; i++)); do eval "a=$i"; done`)
	if n := len(res.report.Sites); n > MaxSites || n < MaxSites-10 {
		t.Errorf("%d sites", n)
	}
	if res.report.Commands != 12001 {
		t.Errorf("%d commands", res.report.Commands)
	}
	if n := len(res.report.Records); n > MaxRecords ||
		int64(n)+res.report.Dropped != res.report.Commands {
		t.Errorf("%d records, %d dropped", n, res.report.Dropped)
	}
}

func TestConcurrentShells(t *testing.T) {
	res := traced(t, `for i in {1..20}; do ( for j in {1..50}; do eval "v$i=$j"; done ) & done; `+
		`wait`)
	var sites int64
	for _, s := range res.report.Sites {
		sites += s.Count
	}
	if want := int64(1 + 20 + 20 + 2000 + 1); res.report.Commands != want || sites != want {
		t.Errorf("%d commands, %d at sites, want %d", res.report.Commands, sites, want)
	}
	seen := make(map[string]bool)
	for _, s := range res.report.Sites {
		k := fmt.Sprint(s.Kind, s.Line, s.Words)
		if seen[k] {
			t.Errorf("two sites of %s", k)
		}
		seen[k] = true
	}
}

func TestLive(t *testing.T) {
	res := traced(t, "echo a; echo b; f() { echo c; }; f\n")
	for _, l := range res.live {
		found := false
		for _, r := range res.report.Records {
			found = found || reflect.DeepEqual(l, r)
		}
		if !found {
			t.Errorf("%+v is not in the report", l)
		}
	}
	if len(res.live) != len(res.report.Records) {
		t.Errorf("%d live, %d in all", len(res.live), len(res.report.Records))
	}
}

// TestState compares a shell's state with the report of its EXIT trap in a plain run.
func TestState(t *testing.T) {
	for name, script := range map[string]string{
		"plain": "export A=1 B='two words'; C=3; cd /tmp",
		"odd": "export A=$'line\\nbreak' E= ; declare -x D; export -n HOME; readonly -x " +
			"R=5 2>/dev/null; declare -rx R2=x",
		"function": "f() { echo \"x\" | cat; }; export -f f",
		"exit":     "export A=1; f() { local -x L=in; exit 3; }; f",
		"errexit":  "set -eu; export A=b; cd /usr; false",
		"link":     "mkdir d; ln -s d l; cd l",
		"array": "declare -ax arr=(1 2); declare -Ax h=([a]=b); export arr; export N; " +
			"declare -ix I=4+5",
		"unset": "unset PATH HOME; export UTF=ö",
		"shadowed": "export X=1; cd() { :; }; export() { :; }; pwd() { :; }; env() { :; }; " +
			"builtin cd /",
		"closed":     "export A=1; exec 0<&- 1>&- 2>&-",
		"allexport":  "set -a; one=1; two() { :; }",
		"background": "export A=1; sleep 0.01 & (export A=2; exit 4)",
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "w")
			// PATH may be unset, and functions may shadow commands.
			trap := "trap '{ builtin pwd; /usr/bin/env -0; } >\"" + filepath.Dir(dir) +
				"/said\"' EXIT\n"
			corpusRun(t, nil, dir, trap+script, baseEnv(dir))
			b, err := os.ReadFile(filepath.Join(filepath.Dir(dir), "said"))
			if err != nil {
				t.Fatal(err)
			}
			cwd, env, _ := strings.Cut(string(b), "\n")
			res, _ := corpusRun(t, newTracer(t), dir, script, baseEnv(dir))
			if res.report.State == nil {
				t.Fatal("no state")
			}
			if res.report.State.Cwd != cwd {
				t.Errorf("directory %q, want %q", res.report.State.Cwd, cwd)
			}
			got, want := withoutUnderscore(res.report.State.Env),
				withoutUnderscore(strings.Split(strings.TrimSuffix(env, "\x00"), "\x00"))
			if !reflect.DeepEqual(got, want) {
				t.Errorf("environment\n%q, want\n%q", got, want)
			}
		})
	}
}

func withoutUnderscore(env []string) []string {
	var out []string
	for _, kv := range env {
		// bash 5.3 has the latter in traps
		if !strings.HasPrefix(kv, "_=") && !strings.HasPrefix(kv, "BASH_TRAPSIG=") {
			out = append(out, kv)
		}
	}
	sort.Strings(out)
	return out
}

func TestStateTooLarge(t *testing.T) {
	res := tracedAnyhow(t, "export A=$(head -c 5000000 /dev/zero | tr '\\0' a)\n")
	if res.report.State != nil || !strings.Contains(res.report.Untraced, "4 MiB") {
		t.Errorf("state %v, %q", res.report.State != nil, res.report.Untraced)
	}
}

func TestUserPreload(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "w")
	script := `echo "$LD_PRELOAD"; tr '\0' '\n' < /proc/$$/environ | sort; ls /proc/self/fd`
	// An existing library that does not affect bash.
	lib := "/lib/x86_64-linux-gnu/libm.so.6"
	if _, err := os.Stat(lib); err != nil {
		t.Skip(err)
	}
	compare(t, "user-preload", script,
		func(dir string) []string { return append([]string{"LD_PRELOAD=" + lib}, baseEnv(dir)...) })
	res, _ := corpusRun(t, newTracer(t), dir, script,
		append([]string{"LD_PRELOAD=" + lib}, baseEnv(dir)...))
	if !strings.HasPrefix(res.stdout, lib+"\n") {
		t.Errorf("the session's own LD_PRELOAD is %q", res.stdout)
	}
}

func TestCheck(t *testing.T) {
	bash, err := os.Open("/bin/bash")
	if err != nil {
		t.Fatal(err)
	}
	defer bash.Close()
	if err := Check(bash); err != nil {
		t.Error(err)
	}
	for _, path := range []string{"/bin/ls", "trace_test.go"} {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := Check(f); turnstone.KindOf(err) != turnstone.KindUnavailable {
			t.Errorf("%s: %v", path, err)
		}
		f.Close()
	}
}
