package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone/internal/bench/tables"
	"turnstone.dev/turnstone/internal/testhome"
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

// TestParts runs the part kubernetes of make bench with the smallest sizes, and reads what it prints. It compares no
// figures: they mean nothing. The programs are those that make build has built, and an operator that it builds.
func TestParts(t *testing.T) {
	testhome.Dir(t)
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	// The go command links the operator only when it has changed, if it is still where it was.
	bin, operator := filepath.Join(root, "bin"), filepath.Join(root, ".cache", "bench-operator")
	if unix.Access(filepath.Dir(operator), unix.W_OK) != nil {
		operator = filepath.Join(t.TempDir(), "turn-operator")
	}
	for _, name := range []string{"turn", "turn-server", "runsc"} { // go test notices that one of them has changed
		if _, err := os.Stat(filepath.Join(bin, name)); errors.Is(err, os.ErrNotExist) {
			t.Skipf("%s is not built: make build", name)
		} else if err != nil {
			t.Fatal(err)
		}
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w", "-o", operator, "./cmd/turn-operator")
	build.Dir = root
	if out, err := build.CombinedOutput(); errors.Is(err, exec.ErrNotFound) {
		t.Skip(err)
	} else if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-quick", "-bin", bin, "-root", root, "-operator", operator)
	var page, said bytes.Buffer
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), programVariable+"=1", "TURN_BACKGROUND=off"), &page, &said
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s\n%s", err, said.String(), page.String())
	}
	t.Log(page.String())
	for _, what := range tables.Problems(page.String()) {
		t.Error(what)
	}
	if got := len(tables.Parse(page.String())); got != 2 {
		t.Errorf("%d tables, not those of simulated and of real sandboxes", got)
	}
}
