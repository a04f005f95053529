package syntax

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/testsize"
)

func needBash(t *testing.T) string {
	t.Helper()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no bash on this machine")
	}
	return bash
}

func TestCheck(t *testing.T) {
	needBash(t)
	tests := []struct {
		name, src    string
		line, column int // 0: accepted
		message      string
	}{
		{"empty", "", 0, 0, ""},
		{"sound", "for i in a; do b; done\n", 0, 0, ""},
		{"a word that belongs elsewhere", "a\nfi\n", 2, 1,
			"syntax error near unexpected token `fi'"},
		{"indented", "a\n\n  )\nx", 3, 3, "syntax error near unexpected token `)'"},
		{"never closed", "echo a\necho b; if x\n", 2, 9, "unexpected end of file"},
		{"a quote", "a\necho 'abc\ndef\n", 2, 6, "unexpected EOF while looking for matching"},
		{"on another line", "case x in\na) b\nc) d;;\nesac\n", 3, 2,
			"syntax error near unexpected token `)'"},
		{"only the parser here", "! ! true\n", 0, 0, ""},
		{"pattern after shopt", "shopt -s extglob\necho !(a)\n", 0, 0, ""},
		{"a here-document without end", "cat <<E\nx", 0, 0, ""},
		{"an array before a program", "a=1 b=(1) c\n", 0, 0, ""},
		{"control characters", "a\n\x1b[31m)\n", 2, 6, "syntax error"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f, err := Check(context.Background(), "", "bash", []byte(tt.src))
			if err != nil {
				t.Fatal(err)
			}
			if f == nil {
				if tt.line != 0 {
					t.Error("not refused")
				}
				return
			}
			if f.Span.Line != tt.line || f.Span.Column != tt.column ||
				!strings.Contains(f.Message, tt.message) {
				t.Errorf("%d:%d %q, want %d:%d %q", f.Span.Line, f.Span.Column, f.Message,
					tt.line, tt.column, tt.message)
			}
			if strings.ContainsAny(f.Message, "\x1b\n") {
				t.Errorf("message %q", f.Message)
			}
		})
	}
}

// TestCheckOfSh: syntax outside of POSIX is accepted, syntax that no shell reads is rejected.
func TestCheckOfSh(t *testing.T) {
	needBash(t)
	for src, refused := range map[string]bool{"a=(1 2)\n": false, "[[ a ]]\n": false,
		"if a\n": true, "f() { a; }\n": false} {
		if f, err := Check(context.Background(), "", "sh", []byte(src)); err != nil ||
			(f != nil) != refused {
			t.Errorf("%q: %v, %v", src, f, err)
		}
	}
}

// TestCheckWithBadBash: a failure of the check is not the script's fault.
func TestCheckWithBadBash(t *testing.T) {
	script := []byte("fi\n")
	f, err := Check(context.Background(), "/does/not/exist", "bash", script)
	var typed *turnstone.Error
	if f != nil || !errors.As(err, &typed) || typed.Hint == "" {
		t.Errorf("a bash that does not exist: %v, %v", f, err)
	}
	t.Setenv("PATH", t.TempDir())
	if f, err := Check(context.Background(), "", "bash", script); f != nil || err != nil {
		t.Errorf("no bash in PATH: %v, %v", f, err)
	}
	if f, err := Check(context.Background(), "/bin/false", "bash", script); err != nil || f != nil {
		t.Errorf("a bash that says nothing: %v, %v", f, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Check(ctx, needAbsolute(t), "bash",
		script); turnstone.KindOf(err) != turnstone.KindCanceled {
		t.Errorf("canceled: %v", err)
	}
}

func needAbsolute(t *testing.T) string {
	t.Helper()
	for _, p := range []string{"/bin/bash", "/usr/bin/bash"} {
		if _, err := os.Stat(p); err == nil {
			return p
		}
	}
	t.Skip("no bash on this machine")
	return ""
}

// TestCheckTime: a bash that hangs is abandoned, and the script is accepted.
func TestCheckTime(t *testing.T) {
	slow := filepath.Join(t.TempDir(), "bash")
	if err := os.WriteFile(slow, []byte("#!/bin/sh\nexec sleep 1000\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	f, err := Check(context.Background(), slow, "bash", []byte("fi\n"))
	if f != nil || err != nil {
		t.Errorf("%v, %v", f, err)
	}
	if d := time.Since(began); d > 20*checkTime {
		t.Errorf("took %s", d)
	}
}

// TestCheckRunsNothing: a script read with -n does not run, whatever the environment contains.
func TestCheckRunsNothing(t *testing.T) {
	needBash(t)
	mark := filepath.Join(t.TempDir(), "ran")
	rc := filepath.Join(t.TempDir(), "rc")
	if err := os.WriteFile(rc, []byte("touch "+mark+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("BASH_ENV", rc)
	t.Setenv("ENV", rc)
	if f, err := Check(context.Background(), "", "bash",
		[]byte("touch "+mark+"\nset +n\ntouch "+mark+"\n$(touch "+mark+")\nfi\n")); f == nil ||
		err != nil {
		t.Errorf("%v, %v", f, err)
	}
	if _, err := os.Stat(mark); err == nil {
		t.Error("something ran")
	}
}

// TestCorpus parses the shell scripts of this machine. A script that bash accepts must be accepted.
func TestCorpus(t *testing.T) {
	scripts := realScripts(testsize.Of(400, 2000))
	if len(scripts) < 50 {
		t.Skipf("only %d shell scripts on this machine", len(scripts))
	}
	bash := needBash(t)
	partial, commands, code, asked := 0, 0, 0, 0
	for _, r := range scripts {
		s := Parse(r.src)
		checkScript(t, s)
		if t.Failed() {
			t.Fatalf("in %s", r.path)
		}
		commands += len(s.Commands)
		for _, c := range s.Commands {
			code += len(c.Embedded)
			for _, e := range c.Embedded {
				if len(e.Faults) > 0 {
					t.Logf("%s:%d: %s: %s", r.path, e.Faults[0].Span.Line,
						e.Language, e.Faults[0].Message)
				}
			}
		}
		if len(s.Commands) == 0 && len(r.src) > 200 {
			t.Logf("%s has no commands", r.path)
		}
		if s.Partial != "" {
			partial++
			t.Logf("%s: %s", r.path, s.Partial)
		}
		if f, err := Check(context.Background(), bash, "bash", r.src); err != nil {
			t.Errorf("%s: %v", r.path, err)
		} else if f != nil {
			asked++
			if exec.Command(bash, "-n", r.path).Run() == nil {
				t.Errorf("%s:%d: %s, but bash takes it", r.path, f.Span.Line, f.Message)
			}
		}
	}
	t.Logf("%d scripts, %d commands, %d pieces of code, %d scripts partial, %d refused",
		len(scripts), commands, code, partial, asked)
	if partial > len(scripts)/20 {
		t.Errorf("%d of %d scripts are not parsed to the end", partial, len(scripts))
	}
}
