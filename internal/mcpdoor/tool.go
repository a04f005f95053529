package mcpdoor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"turnstone.dev/turnstone"
)

// A call is one call of a tool.
type call struct {
	*connection
	request *mcp.CallToolRequest
}

// A tool is a tool's definition: its schemas are JSON.
type tool struct {
	name, description string
	in, out           string
	// reads says that the tool changes nothing; adds, that it only adds.
	reads, adds bool
}

// hint names the tool's arguments, of which a model that has guessed one needs the right one.
func (t *tool) hint() string {
	var schema struct {
		Properties map[string]json.RawMessage `json:"properties"`
	}
	if err := json.Unmarshal([]byte(t.in), &schema); err != nil || len(schema.Properties) == 0 {
		return ""
	}
	return "the arguments of " + t.name + " are " +
		strings.Join(slices.Sorted(maps.Keys(schema.Properties)), ", ")
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
		conn, err := d.connection(ctx, r.Session, r.Extra)
		if err != nil {
			return d.failure(nil, err), nil
		}
		defer context.AfterFunc(conn.calls, cancel)()
		var in In
		if err := decode(r.Params.Arguments, &in); err != nil {
			return d.failure(conn, turnstone.NewError("mcp.call", turnstone.KindInvalid,
				"the arguments", err).WithHint(t.hint())), nil
		}
		out, texts, err := f(ctx, call{conn, r}, in)
		if err != nil {
			return d.failure(conn, err), nil
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

// decode decodes the arguments of a call.
func decode(b []byte, in any) error {
	if len(bytes.TrimSpace(b)) == 0 {
		b = []byte("{}")
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	err := dec.Decode(in)
	if err == nil {
		if _, err = dec.Token(); errors.Is(err, io.EOF) {
			return nil
		}
		err = errors.New("more than one value")
	}
	return err
}

// failure returns the result of a call that failed.
func (d *Door) failure(c *connection, err error) *mcp.CallToolResult {
	if c == nil {
		return failed(err, nil)
	}
	return failed(err, c.place.Hide)
}

// failed returns an error as a model reads it: what failed, and what to do.
func failed(err error, hide func(string) string) *mcp.CallToolResult {
	text := err.Error()
	if hint := turnstone.HintOf(err); hint != "" {
		text += "\nhint: " + hint
	}
	if hide != nil {
		text = hide(text)
	}
	return &mcp.CallToolResult{IsError: true,
		Content: []mcp.Content{&mcp.TextContent{Text: cut(text, maxError)}}}
}

// need returns the error of a missing argument, or nil.
func need(name, value string) error {
	if value != "" {
		return nil
	}
	return turnstone.Errorf("mcp.call", turnstone.KindInvalid, name, "is missing")
}
