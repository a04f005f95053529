package terminal

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
)

// parents returns for each turn, by number, its parent.
type parents map[int][]int

func draw(t *testing.T, p parents) string {
	t.Helper()
	var g Graph
	var out strings.Builder
	id := func(n int) turnstone.TurnID { return turnstone.TurnID("t" + strconv.Itoa(n)) }
	for n := len(p); n >= 1; n-- {
		var parents []turnstone.TurnID
		for _, parent := range p[n] {
			parents = append(parents, id(parent))
		}
		rails, below := g.Turn(id(n), parents)
		out.WriteString(rails + strconv.Itoa(n) + "\n")
		for _, line := range below {
			out.WriteString(line + "\n")
		}
	}
	return out.String()
}

func TestGraph(t *testing.T) {
	for name, c := range map[string]struct {
		parents parents
		want    string
	}{
		"a line": {parents{1: nil, 2: {1}, 3: {2}}, "* 3\n* 2\n* 1\n"},
		"a fork": {parents{1: nil, 2: {1}, 3: {1}}, "* 3\n| * 2\n|/\n* 1\n"},
		"a merge": {parents{1: nil, 2: {1}, 3: {1}, 4: {2, 3}}, `
* 4
|\
| * 3
* | 2
|/
* 1
`},
		"two forks": {parents{1: nil, 2: {1}, 3: {1}, 4: {1}}, `
* 4
| * 3
|/
| * 2
|/
* 1
`},
		"three lines": {parents{1: nil, 2: {1}, 3: {1}, 4: {1}, 5: {2}, 6: {3}, 7: {4}}, `
* 7
| * 6
| | * 5
* | | 4
| * | 3
|/ /
| * 2
|/
* 1
`},
		"far apart": {parents{1: nil, 2: {1}, 3: {1}, 4: {2}, 5: {3}, 6: {1}}, `
* 6
| * 5
| | * 4
| * | 3
|/ /
| * 2
|/
* 1
`},
		"beyond another": {parents{1: nil, 2: {1}, 3: {2}, 4: {1}, 5: {2}}, `
* 5
| * 4
| | * 3
| |/
|/|
* | 2
|/
* 1
`},
		"two roots": {parents{1: nil, 2: nil, 3: {1}, 4: {2}}, "* 4\n| * 3\n* | 2\n /\n* 1\n"},
	} {
		if name == "beyond another" { // git draws two lines, graph draws one
			c.want = "\n* 5\n| * 4\n| | * 3\n|_|/\n* | 2\n|/\n* 1\n"
		}
		if got := draw(t, c.parents); got != strings.TrimPrefix(c.want, "\n") {
			t.Errorf("%s: got\n%swant\n%s", name, got, c.want)
		}
	}
}

// TestGraphAsGit checks that a graph without crossing lines equals that of git log --graph; git
// leaves more space behind a merge.
func TestGraphAsGit(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is not installed")
	}
	for name, p := range map[string]parents{
		"a line": {1: nil, 2: {1}, 3: {2}}, "a fork": {1: nil, 2: {1}, 3: {1}},
		"a merge": {1: nil, 2: {1}, 3: {1}, 4: {2, 3}},
		"merges": {1: nil, 2: {1}, 3: {1}, 4: {2, 3}, 5: {4}, 6: {4}, 7: {5, 6},
			8: {7}},
		"a branch goes on":   {1: nil, 2: {1}, 3: {1}, 4: {2, 3}, 5: {3}, 6: {4}},
		"a merge and a fork": {1: nil, 2: {1}, 3: {1}, 4: {2}, 5: {4, 3}, 6: {5}, 7: {5}},
	} {
		if got, want := draw(t, p), gitGraph(t, p); got != want {
			t.Errorf("%s: got\n%s\ngit draws\n%s", name, got, want)
		}
	}
}

// gitGraph creates commits of turns and lets git draw them.
func gitGraph(t *testing.T, p parents) string {
	t.Helper()
	dir := t.TempDir()
	run := func(args ...string) string {
		cmd := exec.Command("git", args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b",
			"GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b",
			"GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1",
			"GIT_COMMITTER_DATE="+stampOf(args), "GIT_AUTHOR_DATE="+stampOf(args))
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	run("init", "-q")
	tree := run("write-tree")
	commits := map[int]string{}
	for n := 1; n <= len(p); n++ {
		args := []string{"commit-tree", tree, "-m", strconv.Itoa(n)}
		for _, parent := range p[n] {
			args = append(args, "-p", commits[parent])
		}
		commits[n] = run(args...)
	}
	args := []string{"log", "--graph", "--date-order", "--format=%s"}
	for n := len(p); n >= 1; n-- {
		args = append(args, commits[n])
	}
	var out strings.Builder
	for line := range strings.Lines(run(args...)) {
		out.WriteString(strings.TrimRight(strings.ReplaceAll(line, "*   ", "* "), " \n") + "\n")
	}
	return out.String()
}

// stampOf gives each commit its own second, by its message.
func stampOf(args []string) string {
	for i, a := range args {
		if a == "-m" {
			n, _ := strconv.Atoi(args[i+1])
			return strconv.Itoa(1_700_000_000+n) + " +0000"
		}
	}
	return "1700000000 +0000"
}
