package engine

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/turntest"
	"turnstone.dev/turnstone/wire"
)

// TestStepsAreBash runs scripts that are difficult to observe, as a step and with plain bash, in
// one sandbox: output, messages and exit status are equal, byte for byte, nothing hangs, and
// missing records are reported.
func TestStepsAreBash(t *testing.T) {
	s, err := testEngine(turntest.Home(t)).Create(t.Context(), CreateRequest{}, func(string) {})
	if err != nil {
		t.Fatalf("%v (%s)", err, turnstone.HintOf(err))
	}
	defer func() { _ = s.Close() }()
	c := s.Client()
	session, err := c.StateGetSession(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		script   string
		untraced string // what the reason must contain; "-": none may be given
	}{
		"10 MB": {"cat > /dev/null <<'EOF'\n" + strings.Repeat("0123456789abcdef\n",
			10<<20/17) + "EOF\necho end\n", "-"},
		"a line of 1 MB": {"echo " + strings.Repeat("x", 1<<20) + " | md5sum\n", "-"},
		"5,000 parentheses": {strings.Repeat("(", 5000) + "echo deep" + strings.Repeat(")", 5000) +
			"\n", ""},
		"invalid UTF-8": {"echo caf\xe9 $'\\xff'\n\xff\xfe\n", "-"},
		"NUL bytes":     {"echo a\x00b\necho c\n", ""}, // bash takes the script for a program
		"NUL bytes below": {"echo a\n" + strings.Repeat(": filler\n", 20) + "echo b\x00c\n",
			"-"},
		"endless heredoc": {"cat <<EOF\nline\n", "-"},
		"syntax error":    {"echo before\nif true; then\nfi\n", ""},
		"no newline":      {"echo a; exit 3", "-"},
		"trap redefined": {"trap() { echo mine \"$@\"; }; trap x EXIT; export KEEP=1; " +
			"builtin trap 'echo bye' EXIT; false\n", "-"},
		"descriptors closed": {"for ((i = 3; i < 300; i++)); do eval \"exec $i>&-\" " +
			"2>/dev/null; done; echo still; ls /nonexistent\n", "-"},
		"all closed": {"exec 0<&- 1>&- 2>&-; echo nobody; exit 4\n", "-"},
		"another program": {"echo first; exec sh -c 'echo second; exit 7'\necho never\n",
			"replaced"},
		"killed":           {"echo a; kill -9 $$\n", ""},
		"set -e in a pipe": {"set -euo pipefail; echo a | grep b | cat; echo never\n", "-"},
		"background":       {"sleep 0.2 & wait; { sleep 60; } & disown; echo done\n", "-"},
		"redefined builtins": {"cd() { :; }; export() { :; }; exit() { builtin exit 9; }; " +
			"builtin() { :; }; unset -f builtin; exit 1\n", "-"},
		"no environment": {"for v in $(compgen -e); do unset \"$v\" 2>/dev/null; done; echo " +
			"ok\n", "-"},
		"shows itself": {"declare -F; trap -p; set -o | md5sum; compgen -e | sort | md5sum; " +
			"echo $- $SHLVL $BASH_ENV; env | grep -c TURN\n", "-"},
		// No pipe where the shell lists its own descriptors: it may still hold the pipe's end.
		"descriptors are few": {"ls /proc/self/fd | wc -l; ls /proc/$$/fd > /tmp/fds; tr '\\n' " +
			"' ' < /tmp/fds\n", "-"},
	} {
		t.Run(name, func(t *testing.T) {
			const path = "/tmp/step.sh"
			if _, err := c.Start(t.Context(),
				wire.ProcessStartParams{Argv: []string{"sh", "-c", "cat > " + path}},
				wire.Stdio{In: strings.NewReader(tt.script)}); err != nil {
				t.Fatal(err)
			}
			var plain, step struct{ out, err bytes.Buffer }
			want, err := c.Start(t.Context(), wire.ProcessStartParams{Argv: []string{"bash", path},
				Cwd: "/workspace"}, wire.Stdio{Out: &plain.out, Err: &plain.err})
			if err != nil {
				t.Fatal(err)
			}
			if err := c.StateSetSession(t.Context(), &wire.StateSetSessionParams{Cwd: "/workspace",
				Env: session.Env}); err != nil {
				t.Fatal(err)
			}
			records := 0
			got, err := c.Execute(t.Context(), wire.ShellExecuteParams{Name: "step"}, tt.script,
				wire.Stdio{Out: &step.out, Err: &step.err},
				func(r []wire.ShellRecord) { records += len(r) })
			if err != nil {
				t.Fatal(err)
			}
			mask := func(s string) string {
				return strings.ReplaceAll(strings.ReplaceAll(s, got.Path, "SCRIPT"), path, "SCRIPT")
			}
			if fmt.Sprint(got.Exit.ExitCode, got.Exit.Signal) != fmt.Sprint(want.Exit.ExitCode,
				want.Exit.Signal) {
				t.Errorf("exit %d %s, plain bash %d %s", got.Exit.ExitCode, got.Exit.Signal,
					want.Exit.ExitCode, want.Exit.Signal)
			}
			if a, b := mask(step.out.String()), mask(plain.out.String()); a != b {
				t.Errorf("stdout %.300q, plain bash %.300q", a, b)
			}
			if a, b := mask(step.err.String()), mask(plain.err.String()); a != b {
				t.Errorf("stderr %.300q, plain bash %.300q", a, b)
			}
			switch {
			case tt.untraced == "-" && (got.Untraced != "" || records == 0):
				t.Errorf("%d records, untraced: %q", records, got.Untraced)
			case tt.untraced != "-" && !strings.Contains(got.Untraced, tt.untraced):
				t.Errorf("untraced: %q, want %q in it", got.Untraced, tt.untraced)
			}
		})
	}
}
