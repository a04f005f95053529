package mcpdoor

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"turnstone.dev/turnstone"
)

// Addresses of resources.
const (
	scheme      = "turn://"
	receiptsURI = scheme + "receipts/"
	filesURI    = scheme + "files/"
	outputsURI  = scheme + "outputs/"
	formatURI   = scheme + "document-format"

	markdown = "text/markdown"
)

func (d *Door) addResources() {
	d.server.AddResource(&mcp.Resource{URI: formatURI, Name: "document-format", MIMEType: markdown,
		Description: "How to write a document for run_turn, and how to read its receipt."},
		func(context.Context, *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
			return textResult(formatURI, markdown, format), nil
		})
	for _, t := range []mcp.ResourceTemplate{
		{URITemplate: receiptsURI + "{+turn}", Name: "receipt", MIMEType: markdown,
			Description: "The whole receipt of a turn, with its signatures. TURN is t_… or SESSION@3."},
		{URITemplate: filesURI + "{turn}/{+path}", Name: "file",
			Description: "A file of the state that a turn left."},
		{URITemplate: outputsURI + "{number}", Name: "output", MIMEType: "text/plain",
			Description: "A long output of this connection, whose address a result has."},
	} {
		d.server.AddResourceTemplate(&t, d.read)
	}
}

func textResult(uri, kind, text string) *mcp.ReadResourceResult {
	return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: uri, MIMEType: kind,
		Text: text}}}
}

// dataResult returns a text of a kind, or bytes that are none.
func dataResult(uri, kind string, b []byte) *mcp.ReadResourceResult {
	if utf8.Valid(b) {
		return textResult(uri, kind, string(b))
	}
	return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: uri,
		MIMEType: "application/octet-stream", Blob: b}}}
}

// An address is a parsed address of a resource.
type address struct{ kind, turn, path string }

// parseURI parses the address of a resource, which is untrusted. The error is of kind NotFound.
func parseURI(uri string) (a address, err error) {
	wrong := func() (address, error) {
		return address{}, turnstone.Errorf("mcp.read", turnstone.KindNotFound, "the resource",
			"has no such address").WithHint("read the addresses that results have")
	}
	rest, ok := strings.CutPrefix(uri, scheme)
	if !ok || len(uri) > maxPath+maxRef {
		return wrong()
	}
	kind, rest, ok := strings.Cut(rest, "/")
	if !ok || rest == "" {
		return wrong()
	}
	a.kind = kind + "/"
	turn, name := rest, ""
	switch scheme + a.kind {
	case receiptsURI, outputsURI:
	case filesURI:
		if turn, name, ok = strings.Cut(rest, "/"); !ok {
			return wrong()
		}
	default:
		return wrong()
	}
	if a.turn, err = url.PathUnescape(turn); err != nil {
		return wrong()
	}
	if a.path, err = url.PathUnescape(name); err != nil || strings.ContainsRune(a.path, 0) {
		return wrong()
	}
	if scheme+a.kind == filesURI {
		a.path = "/" + strings.TrimLeft(a.path, "/")
	}
	return a, nil
}

// read answers the read of a resource.
func (d *Door) read(ctx context.Context, r *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
	c, leave, err := d.enter(ctx, r.Session, r.Extra)
	if err != nil {
		return nil, err
	}
	defer leave()
	res, err := c.read(ctx, r.Params.URI)
	if err == nil {
		err = d.bounded(res)
	}
	switch {
	case turnstone.KindOf(err) == turnstone.KindNotFound:
		return nil, mcp.ResourceNotFoundError(r.Params.URI)
	case err != nil:
		return nil, errors.New(explain(err, c.place.Hide))
	}
	return res, err
}

// bounded reports a resource that is longer as JSON than the client takes.
func (d *Door) bounded(r *mcp.ReadResourceResult) error {
	if d.o.MaxResource == 0 {
		return nil
	}
	b, err := json.Marshal(r)
	if err != nil || len(b) <= d.o.MaxResource {
		return err
	}
	return turnstone.Errorf("mcp.read", turnstone.KindExhausted, "the resource", "has %s as JSON, and "+
		"a message has at most %s", turnstone.Bytes(len(b)), turnstone.Bytes(d.o.MaxResource)).
		WithHint(readParts)
}

func (c *connection) read(ctx context.Context, uri string) (*mcp.ReadResourceResult, error) {
	a, err := parseURI(uri)
	if err != nil {
		return nil, err
	}
	if scheme+a.kind == outputsURI {
		b, err := c.kept.get(uri)
		if err != nil {
			return nil, err
		}
		return dataResult(uri, "text/plain", b), nil
	}
	ref, err := c.target("", "").ref("the turn", a.turn)
	if err != nil {
		return nil, err
	}
	if scheme+a.kind == receiptsURI {
		text, err := c.place.Turns.Receipt(ctx, ref)
		if err != nil {
			return nil, err
		}
		if len(text) > maxResource {
			return nil, tooLarge("the receipt")
		}
		return dataResult(uri, markdown, text), nil
	}
	return c.readState(ctx, uri, ref, a.path)
}

// readState reads a file of a turn's state.
func (c *connection) readState(ctx context.Context, uri, ref, name string) (
	*mcp.ReadResourceResult, error) {
	f, err := c.place.Turns.OpenFile(ctx, ref, name)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(f, maxResource+1))
	if closing := f.Close(); err == nil {
		err = closing
	}
	if len(b) > maxResource {
		return nil, tooLarge(name)
	}
	if err != nil {
		return nil, err
	}
	return dataResult(uri, "text/plain", b), nil
}

func tooLarge(what string) error {
	return turnstone.Errorf("mcp.read", turnstone.KindExhausted, what, "has more than %s",
		turnstone.Bytes(maxResource)).WithHint(readParts)
}

const readParts = "read parts with read_file"
