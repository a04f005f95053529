package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestLLMs: the page is the one at the root, short, and has no command that its own examples, which a
// script runs, do not have.
func TestLLMs(t *testing.T) {
	if root := string(ok[[]byte](t)(os.ReadFile("../../llms.txt"))); root != llms {
		t.Error("cmd/turn/llms.txt is not llms.txt of the root: copy it")
	}
	const most = 3000
	if n := len(strings.Fields(llms)); n > most {
		t.Errorf("the page has %d words, more than %d", n, most)
	}
	run := ""
	for _, m := range regexp.MustCompile("(?s)\n```sh\n(.*?)\n```\n").FindAllStringSubmatch(llms, -1) {
		run += m[1] + "\n"
	}
	if len(run) < 1000 {
		t.Fatalf("the examples are %q", run)
	}
	// named as what others do, with a server or a client that no script has
	elsewhere := map[string]bool{"turn mcp": true, "turn help COMMAND": true}
	for _, m := range regexp.MustCompile("`(turn [a-z]+( [a-z]+|COMMAND)?)[^`]*`").
		FindAllStringSubmatch(llms, -1) {
		if name := m[1]; !strings.Contains(run, name) && !elsewhere[name] &&
			!elsewhere[name+" COMMAND"] {
			t.Errorf("no example has %s", name)
		}
	}
}
