package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/rogpeppe/go-internal/testscript"
)

// mcpCalls calls the tools in the lines of a file, each a name and its arguments, of a turn mcp with
// the flags that follow: "mcp FILE [FLAG...]". The line "KILL" kills turn mcp. The results go to the file out, each after its tool's
// name. turn has ended when the command returns.
func mcpCalls(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 {
		ts.Fatalf("usage: mcp FILE [FLAG...]")
	}
	const bound = 10 * time.Minute
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	path := ""
	for _, dir := range filepath.SplitList(ts.Getenv("PATH")) {
		if path = filepath.Join(dir, "turn"); isFile(path) {
			break
		}
	}
	cmd := exec.CommandContext(ctx, path, append([]string{"mcp"}, args[1:]...)...)
	for _, name := range []string{"PATH", "HOME", "TURN_HOME", "TURN_HOST", "TURN_TOKEN", "TURN_RUNSC",
		"TURN_SUBSTRATE", "TURN_BACKGROUND"} {
		cmd.Env = append(cmd.Env, name+"="+ts.Getenv(name))
	}
	var errs bytes.Buffer
	cmd.Stderr = &errs
	client := mcp.NewClient(&mcp.Implementation{Name: "script", Version: "1"}, nil)
	s, err := client.Connect(ctx, &mcp.CommandTransport{Command: cmd, TerminateDuration: bound}, nil)
	ts.Check(err)
	var out strings.Builder
	for line := range strings.Lines(ts.ReadFile(args[0])) {
		name, arguments, _ := strings.Cut(strings.TrimSpace(line), " ")
		if name == "KILL" {
			ts.Check(cmd.Process.Kill())
			_ = s.Close() // the error is that of the killed process
			ts.Check(os.WriteFile(ts.MkAbs("out"), []byte(out.String()), 0o600))
			return
		}
		r, err := s.CallTool(ctx, &mcp.CallToolParams{Name: name,
			Arguments: json.RawMessage(arguments)})
		ts.Check(err)
		if r.IsError {
			name += " error: " + r.Content[0].(*mcp.TextContent).Text
		} else if got, err := json.Marshal(r.StructuredContent); err != nil {
			ts.Check(err)
		} else {
			name += " " + string(got)
		}
		out.WriteString(strings.ReplaceAll(name, "\n", `\n`) + "\n")
	}
	err = s.Close()
	ts.Logf("%s%s", out.String(), errs.String())
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs("out"), []byte(out.String()), 0o600))
}
