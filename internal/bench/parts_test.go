package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone/internal/bench/tables"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/turntest"
)

//testrun:race own

// programVariable makes the test's program the command bench.
const programVariable = "TURNSTONE_BENCH_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(programVariable) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// TestParts runs each part of make bench with the smallest sizes, and reads what it prints. It compares no figures:
// they mean nothing.
func TestParts(t *testing.T) {
	b := quickBench(t)
	for _, p := range new(bench).parts() {
		t.Run(p.name, func(t *testing.T) {
			switch _, err := exec.LookPath("chromium"); {
			case p.name == "kvm" && os.Getenv("TEST_KERNEL") == "":
				t.Skip("TEST_KERNEL names no kernel for tests")
			case p.name == "ui" && err != nil && os.Getenv("TURN_TEST_BROWSER") == "":
				t.Skip(err)
			}
			b.cached(t, p)
			page := b.run(t, "-only", p.name)
			t.Log(page)
			for _, what := range tables.Problems(page) {
				t.Error(what)
			}
			if !strings.Contains(page, "## ") {
				t.Error("the part has no heading")
			}
		})
	}
}

// A quickRun is the command bench with a state directory of its own.
type quickRun struct {
	root string // of the module
	turn string
	args []string
	env  []string
}

// quickBench returns a command that builds its floors once, with GOFLAGS as they are. Its state directory has the
// templates, kernel, snapshots and verdicts that tests share: they are expensive to make.
func quickBench(t *testing.T) *quickRun {
	shared, dir := turntest.Home(t), t.TempDir()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	b := &quickRun{root: root, turn: filepath.Join(root, "bin", "turn")}
	if _, err := os.Stat(b.turn); err != nil {
		b.turn = filepath.Join(dir, "turn")
		if out, err := exec.Command("go", "build", "-o", b.turn, "../../cmd/turn").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	home := &statedir.Dir{Root: filepath.Join(dir, "home")}
	if err := os.Mkdir(home.Root, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"templates", "kernel", "snapshots", "cache", "gvisor"} {
		from, err := shared.MkdirAll(part)
		if err == nil {
			err = os.Symlink(from, home.Path(part))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if home.HasMemory() {
			_ = home.ForgetMemory()
		}
	})
	// Where make bench has them: what is there and has not changed is not linked again.
	floors := filepath.Join(root, ".cache", "floors")
	if unix.Access(filepath.Dir(floors), unix.W_OK) != nil {
		floors = filepath.Join(dir, "floors")
	}
	b.args = []string{"-quick", "-build", "-turn", b.turn, "-floors", floors,
		"-kernel", os.Getenv("TEST_KERNEL")}
	b.env = append(os.Environ(), programVariable+"=1", "TURN_HOME="+home.Root, "TURN_BACKGROUND=off")
	return b
}

// run returns what the command prints.
func (b *quickRun) run(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], slices.Concat(b.args, args)...)
	var out, said bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = b.root, b.env, &out, &said
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s\n%s", err, said.String(), out.String())
	}
	return out.String()
}

// cached looks at the files of which the programs of a part consist: go test runs a test again after a change of
// files that the test has looked at, and does not see those that other programs read.
func (b *quickRun) cached(t *testing.T, p part) {
	t.Helper()
	files := []string{b.turn, filepath.Join(b.root, "bin", "runsc")}
	for _, name := range p.floors {
		tests, err := filepath.Glob(filepath.Join(b.root, "internal", name, "*_test.go"))
		if err != nil || len(tests) == 0 {
			t.Fatalf("the floor %s has no tests: %v", name, err)
		}
		files = append(files, tests...)
	}
	for _, path := range files {
		if _, err := os.Stat(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
}
