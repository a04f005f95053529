package process

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"syscall"

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
	if l == nil { // of a terminal
		return ""
	}
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
		"options": {Argv: []string{"bash", "-euo", "pipefail", "-xc", "echo $-; (exit 3); echo no"}, Env: base, Cwd: dir},
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

// TestParkedDoesNotFit: any other start ends the parked process, and is what it would be without.
func TestParkedDoesNotFit(t *testing.T) {
	dir := t.TempDir()
	env := []string{"PATH=" + dir + ":" + os.Getenv("PATH")}
	shell := func(more ...string) Spec {
		return Spec{Argv: append([]string{"bash", "-c"}, more...), Env: env, Cwd: "/"}
	}
	inherited, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer inherited.Close()
	for name, tt := range map[string]struct {
		change func(s *Spec, tab *Table)
		want   string
	}{
		"another program": {func(s *Spec, _ *Table) { s.Argv[0] = "sh" }, "here\n"},
		"a path":          {func(s *Spec, tab *Table) { s.Argv[0] = tab.parked.path }, "here\n"},
		"many arguments": {func(s *Spec, _ *Table) {
			s.Argv = append(s.Argv, make([]string, 20)...)
		}, "here\n"},
		"a long script": {func(s *Spec, _ *Table) { s.Argv[2] += strings.Repeat(" ", 60_000) }, "here\n"},
		"many variables": {func(s *Spec, _ *Table) {
			for i := range 600 {
				s.Env = append(s.Env, "V"+strconv.Itoa(i)+"=")
			}
		}, "here\n"},
		"a variable of the linker": {func(s *Spec, _ *Table) {
			s.Env = append(s.Env, "LD_TRACE_LOADED_OBJECTS=1")
		}, "libc.so"},
		"a terminal": {func(s *Spec, _ *Table) { s.Terminal = &Terminal{80, 25} }, "here\r\n"},
		"a file":     {func(s *Spec, _ *Table) { s.Files = []*os.File{inherited} }, "here\n"},
		"a program before it": {func(*Spec, *Table) {
			if err := os.WriteFile(filepath.Join(dir, "bash"), []byte("#!/bin/sh\necho other\n"),
				0o755); err != nil {
				t.Error(err)
			}
		}, "other\n"},
		"a changed library": {func(_ *Spec, tab *Table) {
			tab.parked.files[len(tab.parked.files)-1].stat[6]++
		}, "here\n"},
		"a dead one": {func(_ *Spec, tab *Table) { _ = syscall.Kill(tab.parked.pid, syscall.SIGKILL) },
			"here\n"},
		"a stop that is not its own": {func(_ *Spec, tab *Table) {
			_ = syscall.Kill(tab.parked.pid, syscall.SIGSTOP)
		}, "here\n"},
	} {
		t.Run(name, func(t *testing.T) {
			defer os.Remove(filepath.Join(dir, "bash"))
			tab := parkedTable(t, true, Options{})
			was := tab.wasParked()
			s := shell("echo here")
			s.Env = append([]string(nil), env...)
			tt.change(&s, tab)
			out, errs, _, pid := output(t, tab, s, "")
			if pid == was || !strings.Contains(out, tt.want) || errs != "" {
				t.Errorf("%q, %q; PID %d, and %d was parked", out, errs, pid, was)
			}
			ended(t, was)
		})
	}
}

// ended fails the test unless a process has ended and was collected.
func ended(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the parked process %d is there: %v", pid, err)
	}
}

// TestParkedFailedStart: a start that cannot succeed has the error that it has without a parked
// process.
func TestParkedFailedStart(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, s := range []Spec{
		{Argv: []string{"bash", "-c", "echo"}, Env: os.Environ(), Cwd: file},
		{Argv: []string{"bash", "-c", "echo"}, Env: []string{"PATH=/nowhere"}, Cwd: "/"},
		{Argv: []string{"bash", "-c", "echo"}, Env: os.Environ(), Cwd: "/", User: "no such user"},
	} {
		_, want := parkedTable(t, false, Options{}).Start(s)
		_, err := parkedTable(t, true, Options{}).Start(s)
		if err == nil || want == nil || err.Error() != want.Error() {
			t.Errorf("%v, want %v", err, want)
		}
	}
}

// TestUnpark: a parked process can be parked again and ended, and ends with its table.
func TestUnpark(t *testing.T) {
	tab := parkedTable(t, true, Options{})
	first := tab.wasParked()
	if err := tab.Park("bash", "", os.Environ()); err != nil {
		t.Fatal(err)
	}
	ended(t, first)
	second := tab.wasParked()
	tab.Unpark()
	tab.Unpark()
	ended(t, second)
	if err := tab.Park("bash", "", os.Environ()); err != nil {
		t.Fatal(err)
	}
	third := tab.wasParked()
	if err := tab.Close(); err != nil {
		t.Fatal(err)
	}
	ended(t, third)
	for _, name := range []string{"", "/bin/bash", "no-such-program"} {
		if err := parkedTable(t, false, Options{}).Park(name, "", os.Environ()); err == nil {
			t.Errorf("%q was parked", name)
		}
	}
}

// TestParkedStarts: of starts at the same time one at most gets the parked process, and all run.
func TestParkedStarts(t *testing.T) {
	for range 5 {
		tab := parkedTable(t, true, Options{})
		was := tab.wasParked()
		var got sync.Map
		var all sync.WaitGroup
		for i := range 4 {
			all.Go(func() {
				out, _, _, pid := output(t, tab, Spec{Argv: []string{"bash", "-c", "echo $$"},
					Env: os.Environ(), Cwd: "/"}, "")
				got.Store(pid, i)
				if out != strconv.Itoa(pid)+"\n" {
					t.Errorf("%q of %d", out, pid)
				}
			})
		}
		all.Wait()
		if _, ok := got.Load(was); !ok {
			t.Error("no start got the parked process")
		}
	}
}

// BenchmarkStart compares starts with and without a parked process, until the end of the output.
func BenchmarkStart(b *testing.B) {
	for name, park := range map[string]bool{"parked": true, "new": false} {
		b.Run(name, func(b *testing.B) {
			tab, err := NewTable(Options{})
			if err != nil {
				b.Fatal(err)
			}
			defer tab.Close()
			for b.Loop() {
				if park {
					b.StopTimer()
					if err := tab.Park("bash", "", os.Environ()); err != nil {
						b.Fatal(err)
					}
					b.StartTimer()
				}
				p, err := tab.Start(Spec{Argv: []string{"bash", "-c", "echo"}, Env: os.Environ(),
					Cwd: "/"})
				if err != nil {
					b.Fatal(err)
				}
				<-p.Done()
			}
		})
	}
}

// TestIsGlibc: the layout of other C libraries' beginnings is not known.
func TestIsGlibc(t *testing.T) {
	for path, want := range map[string]bool{
		"/usr/lib/x86_64-linux-gnu/libc.so.6": true, "/lib/x86_64-linux-gnu/libc-2.31.so": true,
		"/lib/ld-musl-x86_64.so.1": false, "/lib/libc.so": false, "/lib/libc.musl-x86_64.so.1": false,
	} {
		if got := isGlibc(path); got != want {
			t.Errorf("%s: %v", path, got)
		}
	}
}
