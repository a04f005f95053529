package process

import (
	"context"

	"os"

	"path/filepath"
	"strings"

	"testing"
	"time"
)

// properties is a script that prints what a process can know of itself and that two processes share
// which were started in the same way.
const properties = `
printf '<%s>' "$0" "$@"; echo
tr '\0' '\n' </proc/$$/cmdline; echo; tr '\0' '\n' </proc/$$/environ
cat /proc/$$/comm; readlink /proc/$$/exe /proc/$$/cwd
set -o posix; set | grep -vE '^(BASHPID|EPOCH|RANDOM|SRANDOM|PPID|_)='; set +o posix
export -p; echo "$SHLVL $- $_ $PPID"; pwd; umask; ulimit -a; ulimit -Ha; trap -p; jobs
[ $$ = $BASHPID ] && echo self
while read -r line; do case $line in
Name*|Umask*|TracerPid*|Uid*|Gid*|Groups*|Threads*|SigP*|SigB*|SigI*|SigC*|Shd*|Cap*|NoNewPrivs*|Seccomp*) echo "$line";; esac; done </proc/$$/status
read -r stat </proc/$$/stat; stat=${stat##*) }; set -- $stat
[ $3 = $$ ] && [ $4 = $$ ] && echo "leads its session and group, terminal $5"
cat /proc/$$/cgroup
for f in /proc/$$/fd/*; do case $(readlink $f) in pipe:*) echo "${f##*/} pipe";; *) echo "${f##*/} $(readlink $f)";; esac; done
while read -r _ perms _ _ _ name; do echo "$perms $name"; done </proc/$$/maps | grep -v anon | sort -u
od -An -v -tu8 -w16 /proc/$$/auxv | while read -r key value; do case $key in 3|7|9|15|25|31|33) ;; *) echo "auxv $key $value";; esac; done
locale 2>/dev/null; printf '%d %s\n' "${#X}" "$X"; printf '%.2f\n' 1.5
`

// parkedTable returns a table, with a parked bash if park is true.
func parkedTable(t *testing.T, park bool, opt Options) *Table {
	t.Helper()
	tab, err := NewTable(opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tab.Close() })
	if park {
		if err := tab.Park("bash", "", []string{"PATH=" + os.Getenv("PATH")}); err != nil {
			t.Fatal(err)
		}
	}
	return tab
}

// output runs a process to its end, and returns its outputs, its exit, and its PID.
func output(t *testing.T, tab *Table, s Spec, input string) (out, errs string, e Exit, pid int) {
	t.Helper()
	p, err := tab.Start(s)
	if err != nil {
		t.Fatal(err)
	}
	if s.Stdin {
		if err := p.Write(t.Context(), []byte(input)); err != nil && p.stdin != nil {
			t.Fatal(err)
		}
		_ = p.CloseStdin(t.Context())
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	e, err = p.Wait(ctx)
	if err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	return content(t, p.Out[1]), content(t, p.Out[2]), e, p.PID
}

func content(t *testing.T, l *Log) string {
	t.Helper()
	r, _ := l.Attach(t.Context(), 0, Follower)
	defer r.Close()
	var all []byte
	for {
		data, _, ok := r.Next(1 << 20)
		if !ok {
			return string(all)
		}
		all = append(all, data...)
	}
}

// wasParked returns the PID of the parked process; 0: there is none.
func (t *Table) wasParked() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.parked == nil {
		return 0
	}
	return t.parked.pid
}

// TestParked: a process that was parked differs in nothing from one that was not.
func TestParked(t *testing.T) {
	dir := t.TempDir()
	startup := filepath.Join(dir, "startup")
	if err := os.WriteFile(startup, []byte("echo from BASH_ENV; alias x=y\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	base := []string{"PATH=" + os.Getenv("PATH"), "HOME=/root", "LANG=C.UTF-8"}
	var many []string
	for i := range 400 {
		many = append(many, "VARIABLE_"+strings.Repeat("n", i%20)+string(rune('a'+i%26))+"="+
			strings.Repeat("v", i%100))
	}
	for name, s := range map[string]Spec{
		"script":    {Argv: []string{"bash", "-c", properties}, Env: base, Cwd: dir},
		"arguments": {Argv: []string{"bash", "-c", properties, "a name", "", "ü", "$x"}, Env: base, Cwd: "/"},
		"all arguments": {Argv: append([]string{"bash", "-c", properties},
			strings.Fields("1 2 3 4 5 6 7 8 9 10 11 12 13")...), Env: base, Cwd: "/"},
		"options": {Argv: []string{"bash", "-euo", "pipefail", "-xc", "echo $-; false | true; echo no"}, Env: base, Cwd: dir},
		"variables": {Argv: []string{"bash", "-c", properties}, Cwd: dir,
			Env: append([]string{"BASH_ENV=" + startup, "SHLVL=5", "X=äöü", "_=before",
				"EMPTY=", "BASH_FUNC_f%%=() {  echo f\n}", "LINES_=a\nb"}, base...)},
		"many variables":      {Argv: []string{"bash", "-c", properties}, Cwd: dir, Env: append(many, base...)},
		"nearly no variables": {Argv: []string{"bash", "-c", properties}, Cwd: dir, Env: base[:1]},
		"locale": {Argv: []string{"bash", "-c", properties}, Cwd: dir,
			Env: append([]string{"LC_ALL=C", "X=äöü"}, base...)},
		"posix": {Argv: []string{"bash", "-c", properties}, Cwd: dir,
			Env: append([]string{"POSIXLY_CORRECT=1", "TZ=Asia/Tokyo"}, base...)},
		"input":             {Argv: []string{"bash", "-c", properties + "cat"}, Env: base, Cwd: dir, Stdin: true},
		"script from input": {Argv: []string{"bash", "-s", "x"}, Env: base, Cwd: dir, Stdin: true},
		"exit code":         {Argv: []string{"bash", "-c", "echo out; echo err >&2; exit 42"}, Env: base, Cwd: dir},
		"signal":            {Argv: []string{"bash", "-c", "kill -SEGV $$"}, Env: base, Cwd: dir},
		"children": {Argv: []string{"bash", "-c", "(echo $BASHPID >/dev/null; echo sub) | cat; sleep 0.01 & wait; " +
			"bash -c 'echo $PPID' | grep -qx $$ && echo child; exec env"}, Env: base, Cwd: dir},
		"syntax error": {Argv: []string{"bash", "-c", "if"}, Env: base, Cwd: dir},
	} {
		t.Run(name, func(t *testing.T) {
			input := "printf '%s\\n' \"$0\" \"$@\"\n" + properties + "\n"
			out, errs, exit, _ := output(t, parkedTable(t, false, Options{}), s, input)
			tab := parkedTable(t, true, Options{})
			want := tab.wasParked()
			out2, errs2, exit2, pid := output(t, tab, s, input)
			if pid != want || tab.wasParked() != 0 {
				t.Fatalf("PID %d, but %d was parked", pid, want)
			}
			exit.Duration, exit2.Duration = 0, 0
			if exit != exit2 {
				t.Errorf("%+v, want %+v", exit2, exit)
			}
			equal(t, out, out2)
			equal(t, errs, errs2)
		})
	}
}

// equal compares outputs line by line.
func equal(t *testing.T, want, got string) {
	t.Helper()
	if want == got {
		return
	}
	a, b := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range max(len(a), len(b)) {
		x, y := "(end)", "(end)"
		if i < len(a) {
			x = a[i]
		}
		if i < len(b) {
			y = b[i]
		}
		if x != y {
			t.Errorf("line %d: %q, want %q", i+1, y, x)
		}
	}
}
