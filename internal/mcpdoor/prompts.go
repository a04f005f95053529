package mcpdoor

import (
	"context"
	_ "embed" // the format

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// format describes documents and receipts to a model.
//
//go:embed format.md
var format string

// A prompt is a text for a model about a task.
type prompt struct{ name, description, text string }

func prompts() []prompt {
	return []prompt{
		{"write_document", "Write a document for a task, run it, and read its receipt.",
			"Write one markdown document whose steps do the task below. Run it with run_turn, read " +
				"the receipt, and if a step failed, correct the document and run it again. Then say " +
				"what the receipt proves.\n\n" + format},
		{"try_branches", "Try several ways to do a task on branches, and keep the best.",
			"Prepare the task below with run_turn. Then fork a branch for each of two or three " +
				"different ways to do it, and run a document on each. Compare the turns with compare " +
				"and diff, merge the best branch into main, and say why.\n\n" + format},
	}
}

func (d *Door) addPrompts() {
	for _, p := range prompts() {
		d.server.AddPrompt(&mcp.Prompt{Name: p.name, Description: p.description,
			Arguments: []*mcp.PromptArgument{{Name: "task", Description: "What to do.", Required: true}}},
			func(_ context.Context, r *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
				text := p.text + "\n## The task\n\n" + cut(r.Params.Arguments["task"], maxInline) + "\n"
				return &mcp.GetPromptResult{Description: p.description, Messages: []*mcp.PromptMessage{
					{Role: "user", Content: &mcp.TextContent{Text: text}}}}, nil
			})
	}
}
