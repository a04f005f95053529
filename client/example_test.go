package client_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"strings"
	"testing"

	"turnstone.dev/turnstone/client"
)

// example is that of docs/sdk-go.md. It is run by TestExample, which gives it a state directory.
func example() {
	ctx := context.Background()
	c, err := client.New(ctx, client.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	sb, err := c.Sandbox(ctx, client.SandboxOptions{Image: "base"})
	if err != nil {
		log.Fatal(err)
	}
	if err := sb.Files().Write(ctx, "greeting.txt", []byte("hello\n")); err != nil {
		log.Fatal(err)
	}
	r, err := sb.Exec(ctx, []string{"cat", "greeting.txt"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(r.ExitCode, " ", r.Stdout)
	if err := sb.Close(ctx); err != nil { // the session keeps a turn
		log.Fatal(err)
	}

	receipt, err := c.Run(ctx, "```bash\nwc -c < greeting.txt\n```\n", client.RunOptions{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(receipt.Passed, " ", receipt.Steps[0].Stdout)
	// Output:
	// 0 hello
	// true 6
}

// TestExample runs the example of docs/sdk-go.md, and compares it with the page.
func TestExample(t *testing.T) {
	page, err := os.ReadFile("../docs/sdk-go.md")
	check(t, err)
	source, err := os.ReadFile("example_test.go")
	check(t, err)
	_, block, _ := strings.Cut(string(page), "```go\n")
	block, _, _ = strings.Cut(block, "\n```\n\n## ")
	_, body, _ := strings.Cut(string(source), "func example() {\n")
	body, _, _ = strings.Cut(body, "\n}\n")
	var lines []string
	for line := range strings.Lines(body) {
		lines = append(lines, strings.TrimPrefix(line, "\t"))
	}
	if want := strings.Join(lines, ""); block != want {
		t.Errorf("docs/sdk-go.md has another example:\n%s", block)
	}
	s := newScene(t)
	t.Setenv("TURN_HOME", s.dir)
	t.Setenv("PATH", strings.TrimSuffix(s.program, "/turn")+":"+os.Getenv("PATH"))
	printed := captured(t, example)
	_, want, _ := strings.Cut(block, "// Output:\n")
	if got := "// " + strings.ReplaceAll(strings.TrimSpace(printed), "\n", "\n// "); got != want {
		t.Errorf("it prints %q, not %q", got, want)
	}
}

// captured returns what f prints.
func captured(t *testing.T, f func()) string {
	t.Helper()
	file, err := os.CreateTemp(t.TempDir(), "")
	check(t, err)
	out := os.Stdout
	os.Stdout = file
	defer func() { os.Stdout = out; _ = file.Close() }()
	f()
	b, err := os.ReadFile(file.Name())
	check(t, err)
	return string(b)
}
