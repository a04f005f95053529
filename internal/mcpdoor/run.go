package mcpdoor

import (
	"context"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/executor"
)

type runIn struct {
	Document string `json:"document"`
	Session  string `json:"session"`
	Branch   string `json:"branch"`
}

// A turnOut is a turn in results.
type turnOut struct {
	Turn       turnstone.TurnID `json:"turn"`
	Session    string           `json:"session"`
	Number     int              `json:"number"`
	Branch     string           `json:"branch"`
	Result     turnstone.Result `json:"result"`
	Error      string           `json:"error,omitempty"`
	Hint       string           `json:"hint,omitempty"`
	Receipt    string           `json:"receipt"`
	ReceiptURI string           `json:"receipt_uri"`
}

// maxDocument bounds a document in bytes.
const maxDocument = 1 << 20

// parse returns the document of a call, which asks for no file of the host.
func parse(text string) (*document.Document, error) {
	if len(text) > maxDocument {
		return nil, turnstone.Errorf("mcp.run", turnstone.KindInvalid, "the document",
			"has %d bytes, and may have %d", len(text), maxDocument).
			WithHint("write large files with write_file, or let a step fetch them")
	}
	doc, err := document.Parse("document.md", []byte(text))
	if err != nil {
		return nil, err
	}
	if files := doc.Front.Files; len(files) > 0 {
		return nil, turnstone.Errorf("mcp.run", turnstone.KindInvalid, "files: "+files[0],
			"is a file of the host, which no document of this connection reads").
			WithHint("remove files: and write the files with write_file")
	}
	return doc, nil
}

// run runs a document on the head of a branch.
func run(ctx context.Context, c call, in runIn) (out turnOut, texts []mcp.Content, err error) {
	if err := need("document", in.Document); err != nil {
		return out, nil, err
	}
	doc, err := parse(in.Document)
	if err != nil {
		return out, nil, err
	}
	t := c.work(in.Session, in.Branch)
	p := c.newProgress(ctx, len(doc.Steps))
	defer p.end()
	var report *turnstone.TurnReport
	err = c.settled(ctx, t, func() error {
		req := executor.Request{Document: doc, Piped: true, Dir: noFolder, Session: t.session,
			Branch: t.branch}
		report, err = c.place.Turns.Run(ctx, req, observer(p))
		return err
	})
	if report == nil {
		return out, nil, err
	}
	out, texts = c.answer(report)
	return out, texts, nil
}

// noFolder is no folder: a document has none.
const noFolder = "/dev/null"

// observer returns p as an executor's observer: a nil interface if it is nil.
func observer(p *progress) executor.Observer {
	if p == nil {
		return nil
	}
	return p
}

// answer returns the results about a turn.
func (c call) answer(r *turnstone.TurnReport) (turnOut, []mcp.Content) {
	receipt := []byte(r.Receipt)
	if text, _, found := document.CutEvidence(receipt); found {
		receipt = text // a resource has the signatures
	}
	uri := receiptsURI + string(r.ID)
	out := turnOut{Turn: r.ID, Session: r.Session, Number: r.Number, Branch: r.Branch,
		Result: r.Result, Error: cut(r.Error, maxError), Hint: cut(r.Hint, maxError),
		Receipt: cut(string(receipt), maxInline), ReceiptURI: uri}
	if c.place.Hide != nil {
		out.Error, out.Hint = c.place.Hide(out.Error), c.place.Hide(out.Hint)
	}
	texts := []mcp.Content{&mcp.TextContent{Text: out.Receipt}}
	if out.Error != "" {
		texts = append(texts, &mcp.TextContent{Text: strings.TrimSpace(
			"error: " + out.Error + "\nhint: " + out.Hint)})
	}
	if len(receipt) > maxInline {
		texts = append(texts, &mcp.ResourceLink{URI: uri, Name: "receipt of " + string(r.ID),
			MIMEType: markdown})
	}
	return out, texts
}
