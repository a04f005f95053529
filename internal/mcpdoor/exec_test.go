package mcpdoor_test

import (
	"encoding/base64"
	"strings"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// TestImage: a call chooses the image of a session's sandbox, and says so if that is of another one.
func TestImage(t *testing.T) {
	p := newPlace()
	s, _ := connect(t, p, nil)
	call(t, s, "exec", map[string]any{"command": "one", "image": "nodejs"})
	call(t, s, "exec", map[string]any{"command": "two"})
	call(t, s, "exec", map[string]any{"command": "three", "image": "nodejs"})
	call(t, s, "exec", map[string]any{"command": "four", "image": "python", "session": "other"})
	want := "create s main nodejs; exec one; exec two; exec three; create other main python; exec four"
	if got := strings.Join(p.noted(), "; "); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	p.mu.Lock()
	for id := range p.images {
		p.images[id] = "docker.io/library/" + p.images[id] + ":3@sha256:0011"
	}
	p.mu.Unlock()
	for _, image := range []string{"nodejs:3", "docker.io/library/nodejs:3", "library/nodejs:3", "nodejs:3@sha256:0011"} {
		call(t, s, "exec", map[string]any{"command": "x", "image": image})
	}
	p.mu.Lock()
	for id := range p.images {
		p.images[id] = "nodejs"
	}
	p.mu.Unlock()
	r, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "exec",
		Arguments: map[string]any{"command": "five", "image": "python"}})
	if err != nil || !r.IsError || !strings.Contains(text(r), "image python: the session's sandbox is of nodejs") {
		t.Errorf("%v %s", err, text(r))
	}
}

// TestMissingProgram: a result names an image with the program that a command did not find.
func TestMissingProgram(t *testing.T) {
	for _, c := range []struct {
		image, out, err string
		exit            int64
		want            string
	}{
		{"", "", "bash: line 1: npm: command not found\n", 127, "image nodejs has npm"},
		{"", "bash: line 1: npm: command not found\n", "", 127, "image nodejs has npm"},
		{"", "", "x\n/usr/bin/env: ‘python3’: No such file or directory\n", 127, "image python has python3"},
		{"", "", "./x.sh: 1: pip: not found\n", 127, "image python has pip"},
		{"alpine:3", "", "sh: curl: not found\n", 127, "image base has curl"},
		// of a pipeline, whose last program was found
		{"", "", "bash: line 1: npm: command not found\n", 3, "image nodejs has npm"},
		{"", "a log: npm: command not found\n", "", 3, ""},
		{"nodejs", "", "bash: line 1: npm: command not found\n", 127, ""},
		{"", "", "bash: line 1: no-such-program: command not found\n", 127, ""},
		{"", strings.Repeat("x", 1<<20), "", 127, ""},
	} {
		p := newPlace()
		p.output, p.errput, p.exit = c.out, c.err, c.exit
		s, _ := connect(t, p, nil)
		args := map[string]any{"command": "x"}
		if c.image != "" {
			args["image"] = c.image
		}
		out := call(t, s, "exec", args)
		if note, _ := out["note"].(string); !strings.HasPrefix(note, c.want) || (note == "") != (c.want == "") {
			t.Errorf("%q %.50q of %q: %q, want %q", c.err, c.out, c.image, note, c.want)
		}
	}
}

// TestBytes: an output that is no text is marked, and nothing of it is lost.
func TestBytes(t *testing.T) {
	for name, c := range map[string]struct {
		out             string
		base64, uri     bool
		note, resources string
	}{
		"text":           {out: "grün\n"},
		"zero bytes":     {out: "a\x00b\n"},
		"short bytes":    {out: "gr\xfcn\n", base64: true, note: "stdout_base64 has all of it"},
		"16 KiB":         {out: strings.Repeat("\xff", 16<<10), base64: true, note: "stdout_base64 has all of it"},
		"long bytes":     {out: strings.Repeat("\xff", 16<<10+1), uri: true, note: "stdout_uri has all of it"},
		"long text":      {out: strings.Repeat("ü", 16<<10), uri: true},
		"too many bytes": {out: strings.Repeat("\xff", 1<<20+5), uri: true, note: "all of it but 5 bytes at its end"},
		// 1 MiB ends in the middle of a character
		"too long a text": {out: "x" + strings.Repeat("ü", 1<<19), uri: true},
	} {
		p := newPlace()
		p.output = c.out
		s, _ := connect(t, p, nil)
		out := call(t, s, "exec", map[string]any{"command": "x"})
		coded, _ := out["stdout_base64"].(string)
		uri, _ := out["stdout_uri"].(string)
		note, _ := out["note"].(string)
		if (coded != "") != c.base64 || (uri != "") != c.uri || !strings.HasSuffix(note, c.note) ||
			(note == "") != (c.note == "") {
			t.Errorf("%s: base64 %t, uri %q, note %q", name, coded != "", uri, note)
		}
		if b, err := base64.StdEncoding.DecodeString(coded); c.base64 && (err != nil || string(b) != c.out) {
			t.Errorf("%s: %v, or other bytes", name, err)
		}
		if !c.uri && !c.base64 && out["stdout"] != c.out {
			t.Errorf("%s: %q", name, out["stdout"])
		}
		if !c.uri {
			continue
		}
		r, err := s.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got := string(r.Contents[0].Blob)
		if c.note == "" {
			got, _, _ = strings.Cut(r.Contents[0].Text, "\n[… ")
		}
		if len(c.out) <= 1<<20 && got != c.out || len(got) < 1<<20-3 && len(got) < len(c.out) ||
			!strings.HasPrefix(c.out, got) {
			t.Errorf("%s: %d of %d bytes, or other ones", name, len(got), len(c.out))
		}
	}
}

// TestManyAtOnce: the bound of sandboxes holds when many are made at once.
func TestManyAtOnce(t *testing.T) {
	p := newPlace()
	s, _ := connect(t, p, nil)
	var calls sync.WaitGroup
	for n := range 40 {
		calls.Go(func() {
			_, _ = s.CallTool(t.Context(), &mcp.CallToolParams{Name: "exec",
				Arguments: map[string]any{"command": "x", "branch": strings.Repeat("b", n+1)}})
		})
	}
	calls.Wait()
	if n := strings.Count(strings.Join(p.noted(), " "), "create"); n != 4 {
		t.Errorf("%d sandboxes were made", n)
	}
}
