package examples

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/testhome"
)

// embedder is a program of another module that runs a document.
const embedder = `package main

import (
	"context"
	"fmt"
	"os"

	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/executor"
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	x, err := executor.Open(ctx, executor.Options{Dir: os.Args[1], Runsc: os.Args[2]})
	if err != nil {
		return err
	}
	defer x.Close()
	doc, err := document.Parse("hello.md", []byte("` + "```bash\\necho hello from $((6 * 7))\\n```\\n" + `"))
	if err != nil {
		return err
	}
	turn, err := x.Run(ctx, executor.Request{Document: doc}, nil)
	if err != nil {
		return err
	}
	fmt.Print(turn.Result, "\n", turn.Receipt)
	return nil
}
`

// TestOtherModule: a module that imports executor opens one and runs a document, with no observer
// and no turn beside it. The variables of the command turn, with wrong values, change nothing.
func TestOtherModule(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("a user of their own has no Go here: ", err)
	}
	home := testhome.Dir(t)
	checkout, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	sums, err := os.ReadFile("../go.sum")
	if err != nil {
		t.Fatal(err)
	}
	// What the module requires is what the checkout requires: it is resolved without a network.
	mod, err := os.ReadFile("../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(string(mod), "module turnstone.dev/turnstone\n",
		"module example.org/embedder\n", 1) +
		"\nrequire turnstone.dev/turnstone v0.0.0\n\nreplace turnstone.dev/turnstone => " +
		checkout + "\n"
	for name, content := range map[string]string{"go.mod": text, "go.sum": string(sums),
		"main.go": embedder} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	program := filepath.Join(dir, "embedder")
	build := exec.CommandContext(t.Context(), "go", "build", "-mod=mod", "-o", program, ".")
	// With these flags, what the module consists of has been built: docs/testing.md, "Rules".
	build.Dir, build.Env = dir, append(os.Environ(), "GOFLAGS=-trimpath -tags=netgo,osusergo", "GOWORK=off")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	run := exec.CommandContext(t.Context(), program, home, os.Getenv("TURN_RUNSC"))
	run.Env = os.Environ()
	for _, v := range cli.Variables {
		if strings.HasPrefix(v.Name, "TURN_") {
			run.Env = append(run.Env, v.Name+"=/nonexistent")
		}
	}
	var said strings.Builder
	run.Stderr = &said
	out, err := run.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, &said)
	}
	if result, receipt, _ := strings.Cut(string(out), "\n"); result != "passed" ||
		!strings.Contains(receipt, "hello from 42\n") {
		t.Errorf("%s\n%s", out, &said)
	}
}
