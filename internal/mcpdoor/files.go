package mcpdoor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"path"
	"strings"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/wire"
)

// workspace is the folder to which paths of calls are relative.
const workspace = "/workspace"

// inSandbox returns an absolute path in a sandbox.
func inSandbox(name string) string {
	if path.IsAbs(name) {
		return path.Clean(name)
	}
	return path.Join(workspace, name)
}

// checkPath reports an argument that is no path. What a path may reach is the sandbox's business: its
// links are resolved there.
func checkPath(name, value string) error {
	if len(value) > maxPath || strings.ContainsRune(value, 0) {
		return argument(name, "is too long, or has a zero byte")
	}
	return nil
}

// maxPath bounds a path in bytes, as Linux does.
const maxPath = 4095

// withAgent calls f with a connection to the agent of a branch's sandbox.
func (c call) withAgent(ctx context.Context, t target, f func(*wire.Client) error) error {
	p := c.newProgress(ctx, 0)
	defer p.end()
	return c.use(ctx, t, "", p.say, func(id turnstone.SandboxID) error {
		conn, err := c.place.Sandboxes.Dial(ctx, id)
		if err != nil {
			return err
		}
		agent := wire.NewClient(conn)
		defer agent.Close()
		defer context.AfterFunc(ctx, func() { _ = agent.Close() })()
		err = f(agent)
		if err != nil && ctx.Err() != nil {
			return ctx.Err()
		}
		return err
	})
}

type readIn struct {
	Path    string `json:"path"`
	Offset  int64  `json:"offset"`
	Limit   int64  `json:"limit"`
	Session string `json:"session"`
	Branch  string `json:"branch"`
}

type readOut struct {
	Text       *string `json:"text,omitempty"`
	Base64     []byte  `json:"base64,omitempty"` // of bytes that are no text
	Size       int64   `json:"size"`
	NextOffset int64   `json:"next_offset,omitempty"`
	Session    string  `json:"session,omitempty"` // that the call has begun
}

// maxRead bounds the bytes of a call of read_file.
const maxRead = 256 << 10

// readFile reads a part of a file.
func readFile(ctx context.Context, c call, in readIn) (out readOut, _ []mcp.Content, err error) {
	if err := need("path", in.Path); err != nil {
		return out, nil, err
	}
	if err := checkPath("path", in.Path); err != nil {
		return out, nil, err
	}
	if in.Limit == 0 {
		in.Limit = maxInline
	}
	switch {
	case in.Offset < 0:
		return out, nil, argument("offset", "is negative")
	case in.Limit < 1 || in.Limit > maxRead:
		return out, nil, argument("limit", "is not 1 to %d", maxRead)
	}
	t := c.work(in.Session, in.Branch)
	out.Session = *c.begun
	err = c.withAgent(ctx, t, func(agent *wire.Client) error {
		r, err := agent.FileSystemRead(ctx, &wire.FileSystemReadParams{Path: inSandbox(in.Path),
			Offset: in.Offset, Length: in.Limit})
		if err != nil {
			return err
		}
		out.Size = r.Size
		out.set(r.Data, in.Offset, r.Eof)
		for n := len(r.Data); !out.fits(); { // its escapes are several bytes each
			n /= 2
			out.set(r.Data[:n], in.Offset, false)
		}
		return nil
	})
	return out, nil, err
}

// set sets the result to the data at an offset, at whose end is the end of the file.
func (o *readOut) set(data []byte, offset int64, end bool) {
	o.Text, o.Base64, o.NextOffset = nil, nil, 0
	if !end { // a part ends between two characters
		data = wholeRunes(data)
		o.NextOffset = offset + int64(len(data))
	}
	if utf8.Valid(data) && bytes.IndexByte(data, 0) < 0 {
		text := string(data)
		o.Text = &text
	} else {
		o.Base64 = data
	}
}

// maxEvent bounds a result that may follow other events in bytes: clients take events of 1 MiB.
const maxEvent = 1<<20 - 64<<10

// fits reports whether a result has few enough bytes. It is in the answer twice: as JSON, and as a text
// of JSON.
func (o *readOut) fits() bool {
	b, err := json.Marshal(o)
	if err != nil {
		return true
	}
	text, err := json.Marshal(string(b))
	return err != nil || len(b)+len(text) <= maxEvent
}

// wholeRunes returns b without the beginning of a character at its end. What is no text stays.
func wholeRunes(b []byte) []byte {
	for n := 1; n < utf8.UTFMax && n < len(b); n++ {
		if c := b[len(b)-n]; utf8.RuneStart(c) {
			if c >= utf8.RuneSelf && !utf8.FullRune(b[len(b)-n:]) {
				return b[:len(b)-n]
			}
			return b
		}
	}
	return b
}

type writeIn struct {
	Path    string  `json:"path"`
	Text    *string `json:"text"`
	Base64  []byte  `json:"base64"`
	Session string  `json:"session"`
	Branch  string  `json:"branch"`
}

type writeOut struct {
	Path    string `json:"path"`
	Size    int64  `json:"size"`
	Session string `json:"session,omitempty"` // that the call has begun
}

// writeFile writes a whole file.
func writeFile(ctx context.Context, c call, in writeIn) (out writeOut, _ []mcp.Content, err error) {
	if err := need("path", in.Path); err != nil {
		return out, nil, err
	}
	if err := checkPath("path", in.Path); err != nil {
		return out, nil, err
	}
	if (in.Text == nil) == (in.Base64 == nil) {
		return out, nil, argument("text and base64", "are both missing, or both there")
	}
	data := in.Base64
	if in.Text != nil {
		data = []byte(*in.Text)
	}
	out.Path = inSandbox(in.Path)
	t := c.work(in.Session, in.Branch)
	out.Session = *c.begun
	err = c.withAgent(ctx, t, func(agent *wire.Client) error {
		return agent.Feed(bytes.NewReader(data), func(stream wire.StreamID) error {
			r, err := agent.FileSystemWrite(ctx, &wire.FileSystemWriteParams{Path: out.Path,
				Stream: stream, Parents: true})
			if err == nil {
				out.Size = r.Size
			}
			return err
		})
	})
	return out, nil, err
}

type listIn struct {
	Path    string `json:"path"`
	After   string `json:"after"`
	Session string `json:"session"`
	Branch  string `json:"branch"`
}

type listOut struct {
	Entries []entry `json:"entries"`
	More    bool    `json:"more"`
	Session string  `json:"session,omitempty"` // that the call has begun
}

type entry struct {
	Name string `json:"name"`
	Type string `json:"type"`
	Size int64  `json:"size"`
}

// listFiles lists a folder.
func listFiles(ctx context.Context, c call, in listIn) (out listOut, _ []mcp.Content, err error) {
	if err := errors.Join(checkPath("path", in.Path), checkPath("after", in.After)); err != nil {
		return out, nil, err
	}
	out.Entries = []entry{}
	t := c.work(in.Session, in.Branch)
	out.Session = *c.begun
	err = c.withAgent(ctx, t, func(agent *wire.Client) error {
		r, err := agent.FileSystemList(ctx, &wire.FileSystemListParams{Path: inSandbox(in.Path),
			After: in.After, Limit: maxList})
		if err != nil {
			return err
		}
		for _, f := range r.Entries {
			out.Entries = append(out.Entries, entry{strings.ToValidUTF8(f.Name, "\uFFFD"),
				string(f.Type), f.Size})
		}
		out.More = r.More
		return nil
	})
	return out, nil, err
}
