package mcpdoor

import (
	"context"
	"encoding/json"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"turnstone.dev/turnstone"
)

// A call is one call of a tool.
type call struct {
	*connection
	request *mcp.CallToolRequest
	begun   *string // the session that the call has begun, which the next one has to name; or empty
}

// work is target for a call that works in a sandbox, where a call that names no session may begin one.
func (c call) work(session, branch string) target {
	if session == "" && c.handles {
		session = newSession()
		*c.begun = session
	}
	return c.target(session, branch)
}

// A tool is a tool's definition: its schemas are JSON.
type tool struct {
	name, description string
	in, out           string
	// reads says that the tool changes nothing; adds, that it only adds.
	reads, adds bool
}

// add adds a tool whose calls f answers. Arguments that the tool does not have are errors, so that a
// misspelt one is not ignored. The texts, if there are any, are what a client shows in place of the
// result's JSON.
func add[In, Out any](d *Door, t tool,
	f func(ctx context.Context, c call, in In) (out Out, texts []mcp.Content, err error)) {
	def := &mcp.Tool{Name: t.name, Description: t.description,
		InputSchema: json.RawMessage(t.in), OutputSchema: json.RawMessage(t.out)}
	if t.reads || t.adds {
		def.Annotations = &mcp.ToolAnnotations{ReadOnlyHint: t.reads}
		if t.adds {
			def.Annotations.DestructiveHint = new(bool)
		}
	}
	d.server.AddTool(def, func(ctx context.Context, r *mcp.CallToolRequest) (
		*mcp.CallToolResult, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(d.calls, cancel)()
		conn, leave, err := d.enter(ctx, r.Session, r.Extra)
		if err != nil {
			return d.failure(nil, err), nil
		}
		defer leave()
		defer context.AfterFunc(conn.calls, cancel)()
		var in In
		if err := decode(r.Params.Arguments, &in); err != nil {
			return d.failure(conn, err), nil
		}
		c := call{conn, r, new(string)}
		out, texts, err := f(ctx, c, in)
		if err != nil {
			failure := d.failure(conn, err)
			if *c.begun != "" {
				failure.Content = append(failure.Content, &mcp.TextContent{Text: "session: " + *c.begun})
			}
			return failure, nil
		}
		b, err := json.Marshal(out)
		if err != nil {
			return nil, err
		}
		if texts == nil {
			texts = []mcp.Content{&mcp.TextContent{Text: string(b)}}
		}
		return &mcp.CallToolResult{Content: texts, StructuredContent: json.RawMessage(b)}, nil
	})
}

// failure returns the result of a call that failed.
func (d *Door) failure(c *connection, err error) *mcp.CallToolResult {
	if c == nil {
		return failed(err, nil)
	}
	return failed(err, c.place.Hide)
}

// failed returns an error as the result of a call.
func failed(err error, hide func(string) string) *mcp.CallToolResult {
	return &mcp.CallToolResult{IsError: true,
		Content: []mcp.Content{&mcp.TextContent{Text: explain(err, hide)}}}
}

// explain returns an error as a model reads it: what failed, and what to do.
func explain(err error, hide func(string) string) string {
	text := err.Error()
	if hint := turnstone.HintOf(err); hint != "" {
		text += "\nhint: " + hint
	}
	if hide != nil {
		text = hide(text)
	}
	return cut(text, maxError)
}

// need returns the error of a missing argument, or nil.
func need(name, value string) error {
	if value != "" {
		return nil
	}
	return argument(name, "is missing")
}
