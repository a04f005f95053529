package main

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"turnstone.dev/turnstone/internal/bench/size"
)

// commitFiles are a commit whose bench program prints its flags' value as the time of a start.
var commitFiles = map[string]string{
	"go.mod":   "module example.org/old\n\ngo 1.22\n",
	"Makefile": "build:\n\tmkdir -p bin && touch bin/turn bin/runsc\n\techo built >>../../built\n",
	"internal/bench/main.go": `package main

import ("flag"; "fmt"; "os"; "strings")

func main() {
	turn, floors := flag.String("turn", "", ""), flag.String("floors", "", "")
	only, runs := flag.String("only", "", ""), flag.Int("runs", 0, "")
	flag.Parse()
	if *only != "start" || !strings.HasSuffix(*turn, "/bin/turn") || !strings.HasSuffix(*floors, "/.cache/floors") ||
		os.Getenv("MAKEFLAGS") != "" || os.Getenv("TURN_RUNSC") != strings.TrimSuffix(*turn, "turn")+"runsc" {
		panic(fmt.Sprint(os.Args, os.Environ()))
	}
	for _, part := range []string{"templates", "kernel"} {
		if _, err := os.Readlink(os.Getenv("TURN_HOME") + "/" + part); err != nil { panic(err) }
	}
	if _, err := os.Stat(os.Getenv("TURN_HOME") + "/state"); err == nil { panic("the user's state") }
	fmt.Printf("## Start (x)\n\n| | p50 |\n|---|---|\n| turn | %d ms |\n", *runs)
}
`}

// TestBase compares a commit of a small repository with itself: it is built once, in a clone.
func TestBase(t *testing.T) {
	repo, home := t.TempDir(), t.TempDir()
	for name, text := range commitFiles {
		path := filepath.Join(repo, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(home, "state"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Chdir(repo)
	git := []string{"-c", "user.name=x", "-c", "user.email=x@example.org"}
	for _, args := range [][]string{{"init", "--quiet"}, {"add", "."}, append(git, "commit", "--quiet", "-m", "x")} {
		if out, err := exec.Command("git", args...).CombinedOutput(); err != nil {
			t.Fatalf("git %s: %v: %s", args, err, out)
		}
	}
	t.Setenv("TURN_HOME", home)
	t.Setenv("TMPDIR", t.TempDir())
	t.Setenv("MAKEFLAGS", "w -- BASE=HEAD") // as make passes it
	now := filepath.Join(t.TempDir(), "now")
	if out, err := exec.Command("go", "build", "-o", now, "./internal/bench").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	b := &bench{only: "start", turn: "bin/turn", floors: ".cache/floors", sizes: sizes{runs: 40}}
	c := comparison{b: b, base: "HEAD", rounds: 3, kept: ".cache/base", program: now}
	for range 2 { // the second finds the commit built
		var out strings.Builder
		if err := c.run(t.Context(), &out); err != nil {
			t.Fatal(err)
		}
		want := regexp.MustCompile(`(?s)^## Compared with [0-9a-f]{12}\n.* 3 rounds.* 40 runs.*\n` +
			`\| Start \| turn \| p50 \| 40\.0 ms \| 40\.0 ms \| \*\*1\.00\*\* \| 1\.00, 1\.00 \|\n$`)
		if !want.MatchString(out.String()) {
			t.Error(out.String())
		}
	}
	if built, err := os.ReadFile(".cache/built"); err != nil || string(built) != "built\n" {
		t.Errorf("the commit was built: %q, %v", built, err)
	}
	if left, err := os.ReadDir(os.TempDir()); err != nil || len(left) > 0 {
		t.Errorf("state directories are left: %v, %v", left, err)
	}
}

func TestBaseRejects(t *testing.T) {
	for name, c := range map[string]comparison{
		"kubernetes":   {b: &bench{only: "start,kubernetes"}, base: "HEAD", rounds: 1},
		"no rounds":    {b: &bench{only: "start"}, base: "HEAD"},
		"no commit":    {b: &bench{only: "start"}, base: "no-such-commit", rounds: 1},
		"not a commit": {b: &bench{only: "start"}, base: "HEAD:Makefile", rounds: 1},
	} {
		if err := c.run(t.Context(), new(strings.Builder)); err == nil {
			t.Errorf("%s: compared", name)
		}
	}
}

func TestSelected(t *testing.T) {
	for only, want := range map[string][]string{
		"":                 {"start", "fleet", "substrates", "kvm"},
		"start":            {"start"},
		"substrates,fleet": {"fleet", "substrates", "kvm"},
		"determinism":      {"determinism"},
		"kubernetes":       nil,
	} {
		b := bench{only: only}
		var got []string
		for _, name := range []string{"start", "fleet", "substrates", "kvm", "determinism"} {
			if b.selected(name) {
				got = append(got, name)
			}
		}
		if !slices.Equal(got, want) || b.known() != nil {
			t.Errorf("%q selects %q, %v", only, got, b.known())
		}
	}
	if err := (&bench{only: "start,stat"}).known(); err == nil {
		t.Error("an unknown part is known")
	}
	if got, want := (&bench{only: "start,sdk"}).needed(), []string{"./internal/driver/gvisor", "./internal/driver/qemu",
		"./client"}; !slices.Equal(got, want) {
		t.Errorf("floors are %q", got)
	}
}

func TestHistoryDepths(t *testing.T) {
	for most, want := range map[int][]int{500: {1, 10, 100, 500}, 2: {1, 2}, 1: {1}, 50: {1, 10, 50}} {
		if got := historyDepths(most); !slices.Equal(got, want) {
			t.Errorf("%d: %v", most, got)
		}
	}
}

// TestFullSizes: the rows that docs/benchmarks.md and other commits have keep their names.
func TestFullSizes(t *testing.T) {
	b := bench{sizes: fullSizes()}
	if got := b.bytes(64 << 20); got != "64 MiB" {
		t.Error(got)
	}
	for n, want := range map[int]string{7: "7", 1000: "1,000", 4000000: "4,000,000"} {
		if got := count(n); got != want {
			t.Errorf("%d: %s", n, got)
		}
	}
	var rows []string
	for _, s := range scripts(size.Full) {
		rows = append(rows, s.row)
	}
	if !slices.Contains(rows, "write of 256 MiB, fsync") || !slices.Contains(rows, "5,000 files of 1 KB") {
		t.Errorf("rows are %q", rows)
	}
}

// TestFlagsHavePrecedence: -quick changes what no flag gives.
func TestFlagsHavePrecedence(t *testing.T) {
	old := flag.CommandLine
	defer func() { flag.CommandLine = old }()
	flag.CommandLine = flag.NewFlagSet("bench", flag.ContinueOnError)
	s := fullSizes()
	s.addFlags()
	args := []string{"-runs", "3", "-state", "8MiB"}
	if err := flag.CommandLine.Parse(args); err != nil {
		t.Fatal(err)
	}
	s = quickSizes()
	if err := flag.CommandLine.Parse(args); err != nil {
		t.Fatal(err)
	}
	if want := quickSizes(); s.runs != 3 || s.state != 8<<20 || s.depth != want.depth || s.divide != want.divide {
		t.Errorf("sizes are %+v", s)
	}
}
