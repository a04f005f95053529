package exports

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// FuzzState checks that no state results in an environment that a shell could not have.
func FuzzState(f *testing.F) {
	f.Add([]byte("/tmp\n\x00declare -x A=\"a\\\"b\"\ndeclare -ix B=$'\\n\\303'\ndeclare -x C\n"+
		"declare -ax D=([0]=\"x\")\n\x00f () \n{ \n    :\n}\ndeclare -fx f\n\x00"), true)
	f.Add([]byte("/tmp\n\x00A=1\x00B=2\n3\x00"), false)
	f.Fuzz(func(t *testing.T, b []byte, bash bool) {
		parse := ParseSh
		if bash {
			parse = ParseBash
		}
		c, err := parse(b)
		if err != nil {
			if c.Cwd != "" || c.Vars != nil || c.Funs != nil {
				t.Fatalf("an error and a state: %+v", c)
			}
			return
		}
		if !strings.HasPrefix(c.Cwd, "/") || strings.Contains(c.Cwd, "\x00") {
			t.Fatalf("cwd %q", c.Cwd)
		}
		for _, kv := range slices.Concat(c.Vars, c.Funs) {
			name, _, ok := strings.Cut(kv, "=")
			if !ok || name == "" || strings.Contains(kv, "\x00") {
				t.Fatalf("entry %q", kv)
			}
		}
	})
}

// FuzzExportRoundTrip checks that every value survives bash's "export -p".
func FuzzExportRoundTrip(f *testing.F) {
	for _, s := range []string{"", "a b", "\"\\$`'", "\n\t\r\x01\x7f", "\xff\xfe", "é", "$'x'",
		"(a)", "\\"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, value string) {
		if strings.Contains(value, "\x00") || len(value) > 10000 {
			t.Skip()
		}
		for _, lang := range []string{"C.UTF-8", "C"} {
			cmd := exec.CommandContext(t.Context(), "/bin/bash", "-c", "export -p")
			cmd.Env = []string{"LC_ALL=" + lang, "V=" + value}
			out, err := cmd.Output()
			if err != nil {
				t.Fatal(err)
			}
			vars, err := parseExports(string(out))
			if err != nil || !slices.Contains(vars, "V="+value) {
				t.Fatalf("%q in %s: %q %v, from %q", value, lang, vars, err, out)
			}
		}
	})
}
