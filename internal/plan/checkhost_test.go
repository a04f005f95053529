package plan

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/config"
	"turnstone.dev/turnstone/internal/statedir"
)

// TestCheckHost checks that what this host would reject is reported, and that nothing is made.
func TestCheckHost(t *testing.T) {
	const locked = "[network]\nlocked = true\nallow = [\"a.example\"]"
	dir := t.TempDir()
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "there"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for front, c := range map[string]struct {
		config string
		piped  bool
		says   string
	}{
		"timeout: 48h":    {says: "timeout: 48h0m0s is more than the 24h0m0s"},
		"memory: 1000GiB": {says: "memory: 1000.0 GiB is more than the "},
		fmt.Sprintf("cpus: %d", max(2, runtime.NumCPU())+1): {
			says: "that this host gives a sandbox"},
		"files: [../a.md]": {says: "leaves the document's folder"},
		"files: [link]":    {says: "escapes"},
		"files: [none]":    {says: "no such file"},
		"files: [there]":   {},
		"files: [later]":   {piped: true},
		"files: [granted]": {piped: true, config: "[documents]\ngrant = [\"files\"]",
			says: "no such file"},
		"network: {allow: [b.example]}": {config: locked, says: "beyond the host's policy"},
		"network: {allow: [a.example]}": {config: locked},
		"network: on": {config: "[network]\nlocked = true\ndefault = \"off\"",
			says: "the host's policy is off"},
		"session: turn-6":   {says: "is not a valid name"},
		"branch: b":         {},
		"lifetime: session": {},
	} {
		h := &statedir.Dir{Root: filepath.Join(t.TempDir(), "home")}
		if c.config != "" {
			if err := os.Mkdir(h.Root, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(h.Path(config.File), []byte(c.config), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		err := Check(h.Root, parse(t, "---\n"+front+"\n---\n"), dir, c.piped)
		if c.says == "" && err != nil || c.says != "" &&
			(turnstone.KindOf(err) != turnstone.KindInvalid ||
				!strings.Contains(err.Error(), c.says)) {
			t.Errorf("%q: %v, want %q", front, err, c.says)
		}
		if _, err := os.Stat(h.Root); c.config == "" && !os.IsNotExist(err) {
			t.Errorf("%q: the state directory was made", front)
		}
	}
}

func TestAsksOfARun(t *testing.T) {
	for front, want := range map[string]string{
		"branch: b":                                   "--session NAME --branch b",
		"lifetime: session":                           "--session NAME --lifetime session",
		"network: {replay: s@1}":                      "--network replay=s@1",
		"session: s\nnetwork: {replay: s@1}":          "--session s",
		"session: s\nnetwork: {replay: z@1}":          "--session s --network replay=z@1",
		"session: s\nnetwork: {replay: t_06gvr7hpbv}": "--session s", // the store knows its session
		"network: {replay: true}":                     "",
	} {
		var flags []string
		for _, a := range Asks(parse(t, "---\n"+front+"\n---\n"), false, config.Config{}) {
			flags = append(flags, a.Flag)
		}
		if got := strings.Join(flags, " "); got != want {
			t.Errorf("%q needs %q, want %q", front, got, want)
		}
	}
}
