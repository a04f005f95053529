package mcpdoor_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/leaktest"
	"turnstone.dev/turnstone/internal/mcpdoor"
	"turnstone.dev/turnstone/sandboxes"
	"turnstone.dev/turnstone/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(leaktest.Patient(m)) }

// A place is where nothing runs: it notes what is asked of it.
type place struct {
	mu      sync.Mutex
	events  []string
	boxes   map[turnstone.SandboxID]bool
	images  map[turnstone.SandboxID]string
	begun   chan struct{} // a turn has begun
	output  string        // of commands
	errput  string        // their errors
	exit    int64         // their exit code; 0: 3
	receipt string
	closed  chan struct{}
}

func newPlace() *place {
	return &place{boxes: map[turnstone.SandboxID]bool{}, images: map[turnstone.SandboxID]string{}, begun: make(chan struct{}, 100),
		closed: make(chan struct{})}
}

func (p *place) note(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.events = append(p.events, text)
}

func (p *place) noted() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.events)
}

func (p *place) Run(ctx context.Context, r executor.Request, o executor.Observer) (
	*turnstone.TurnReport, error) {
	p.note("run " + r.Session + " " + r.Branch)
	if !r.Piped || len(r.Grant) > 0 || len(r.Add) > 0 {
		return nil, errors.New("the document was granted something")
	}
	for _, s := range r.Document.Steps {
		if o != nil {
			o.StepStarted(s)
		}
		p.begun <- struct{}{}
		if s.Name == "long" {
			<-ctx.Done()
			p.note("cancelled")
			return &turnstone.TurnReport{ID: "t_1", Result: turnstone.ResultError,
				Error: "interrupted"}, ctx.Err()
		}
		if o != nil {
			o.StepFinished(s, turnstone.StepReport{Status: turnstone.StepPassed})
		}
	}
	return &turnstone.TurnReport{ID: "t_1", Session: r.Session, Number: 1, Branch: r.Branch,
		Result: turnstone.ResultPassed, Receipt: p.receipt}, nil
}

func (p *place) Replay(_ context.Context, ref string, _ executor.ReplayOptions, _ executor.Observer) (
	*turnstone.ReplayReport, error) {
	p.note("replay " + ref)
	return &turnstone.ReplayReport{Same: false, Steps: []turnstone.StepDifference{
		{Name: "a", What: []string{"exit code 0 before, 1 now"}}}, Env: []string{"X"}, Cwd: true,
		Changes: make([]turnstone.FileDifference, 500)}, nil
}

func (p *place) Log(_ context.Context, ref string, _ int) (*turnstone.Graph, error) {
	p.note("log " + ref)
	return &turnstone.Graph{Session: turnstone.Session{Name: "s"}, Turns: []turnstone.Turn{
		{ID: "t_1", Number: 1, Branch: "main", Result: turnstone.ResultPassed,
			Status: turnstone.TurnDone}}, Branches: []turnstone.Branch{{Name: "main", Head: "t_1"}}}, nil
}

func (p *place) Receipt(_ context.Context, ref string) ([]byte, error) {
	p.note("receipt " + ref)
	return []byte(p.receipt), nil
}

func (p *place) OpenFile(_ context.Context, ref, name string) (io.ReadCloser, error) {
	p.note("open " + ref + " " + name)
	if name == "/huge" {
		return io.NopCloser(zeros{}), nil
	}
	return io.NopCloser(strings.NewReader("content\n")), nil
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

func (p *place) Diff(_ context.Context, r turnstone.DiffRequest) (*turnstone.StateDiff, error) {
	p.note("diff " + r.From + " " + r.To)
	return &turnstone.StateDiff{Files: []turnstone.FileChange{{Path: "/a", Status: "A",
		Patch: strings.Repeat("+x\n", 100_000)}}, Env: []turnstone.EnvChange{{Name: "X"}}}, nil
}

func (p *place) Compare(_ context.Context, refs []string) (*turnstone.CompareReport, error) {
	p.note("compare " + strings.Join(refs, " "))
	return &turnstone.CompareReport{Turns: []turnstone.ComparedTurn{{ID: "t_1",
		Steps: []turnstone.ComparedStep{{Name: "a", Status: turnstone.StepPassed, Output: "x"}}},
		{ID: "t_2"}}, Files: []turnstone.ComparedFile{{Path: "/a", Changes: []string{"A", "M"}}}}, nil
}

func (p *place) Verify(_ context.Context, r turnstone.VerifyRequest) (*turnstone.VerifyReport, error) {
	p.note("verify " + r.Ref)
	return &turnstone.VerifyReport{Problems: []turnstone.VerifyProblem{{Where: "turn 1",
		Error: "not signed"}}}, nil
}

func (p *place) Fork(_ context.Context, ref, name string) (turnstone.Branch, error) {
	p.note("fork " + ref + " " + name)
	return turnstone.Branch{Name: name, Head: "t_1"}, nil
}

func (p *place) Merge(_ context.Context, r executor.MergeRequest) (*turnstone.MergeReport, error) {
	p.note("merge " + r.From + " " + r.Into)
	return &turnstone.MergeReport{Outcome: turnstone.MergeConflicts,
		Conflicts: []turnstone.Conflict{{Path: "/a", Kind: turnstone.ConflictContent}}}, nil
}

func (p *place) Shape(context.Context, string, *bool) (turnstone.Shape, error) {
	return turnstone.DefaultShape(), nil
}

func (p *place) Create(_ context.Context, s sandboxes.Spec, _ func(string)) (sandboxes.Info, error) {
	p.note(strings.TrimSpace("create " + s.Session + " " + s.Branch + " " + s.Image))
	p.mu.Lock()
	defer p.mu.Unlock()
	id := turnstone.SandboxID("sb_" + strings.Repeat("x", len(p.boxes)+1))
	p.boxes[id], p.images[id] = true, cmp.Or(s.Image, "base")
	return sandboxes.Info{ID: id, State: sandboxes.StateReady}, nil
}

func (p *place) Get(id turnstone.SandboxID) (sandboxes.Info, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.boxes[id] {
		return sandboxes.Info{ID: id, State: sandboxes.StateStopped}, nil
	}
	return sandboxes.Info{ID: id, State: sandboxes.StateReady, Image: p.images[id]}, nil
}

func (p *place) Exec(ctx context.Context, id turnstone.SandboxID, c sandboxes.Command) (
	wire.ProcessExit, error) {
	p.note("exec " + c.Argv[2])
	if c.Argv[2] == "sleep" {
		<-ctx.Done()
		return wire.ProcessExit{}, ctx.Err()
	}
	_, _ = io.WriteString(c.Stdout, p.output)
	_, _ = io.WriteString(c.Stderr, p.errput)
	return wire.ProcessExit{ExitCode: cmp.Or(p.exit, 3)}, nil
}

func (p *place) Commit(context.Context, turnstone.SandboxID) (*turnstone.TurnReport, error) {
	p.note("commit")
	return &turnstone.TurnReport{ID: "t_2", Session: "s", Number: 2, Branch: "main"}, nil
}

func (p *place) Remove(_ context.Context, id turnstone.SandboxID) error {
	p.note("remove")
	p.mu.Lock()
	defer p.mu.Unlock()
	p.boxes[id] = false
	return nil
}

func (p *place) Dial(context.Context, turnstone.SandboxID) (net.Conn, error) {
	return nil, errors.New("no agent at /home/me/state/sock")
}

// connect returns a client of a door to p.
func connect(t *testing.T, p *place, told func(string)) (*mcp.ClientSession, *mcpdoor.Door) {
	t.Helper()
	near, far := mcp.NewInMemoryTransports()
	return connectOver(t, p, near, far, told)
}

func connectOver(t *testing.T, p *place, near, far mcp.Transport, told func(string)) (
	*mcp.ClientSession, *mcpdoor.Door) {
	t.Helper()
	return connectTo(t, p, near, far, mcpdoor.Options{}, told)
}

func connectTo(t *testing.T, p *place, near, far mcp.Transport, o mcpdoor.Options, told func(string)) (
	*mcp.ClientSession, *mcpdoor.Door) {
	t.Helper()
	o.Log = slog.New(slog.DiscardHandler)
	o.Open = func(context.Context, *auth.TokenInfo) (mcpdoor.Place, error) {
		return mcpdoor.Place{Turns: p, Sandboxes: p, Session: "s",
			Hide:  func(s string) string { return strings.ReplaceAll(s, "/home/me/state", "$HOME") },
			Close: func() error { close(p.closed); return nil }}, nil
	}
	d := mcpdoor.New(o)
	if _, err := d.Server().Connect(t.Context(), far, nil); err != nil {
		t.Fatal(err)
	}
	c := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			if told != nil {
				told(r.Params.Message)
			}
		}})
	s, err := c.Connect(t.Context(), near, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.Close()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := d.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return s, d
}

// call calls a tool and returns its structured result, which its schema describes.
func call(t *testing.T, s *mcp.ClientSession, name string, args map[string]any) map[string]any {
	t.Helper()
	r, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: name, Arguments: args})
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if r.IsError {
		t.Fatalf("%s: %s", name, text(r))
	}
	out, ok := r.StructuredContent.(map[string]any)
	if !ok {
		t.Fatalf("%s: the result is %T", name, r.StructuredContent)
	}
	if err := schemaOf(t, s, name).Validate(out); err != nil {
		t.Errorf("%s: %v", name, err)
	}
	return out
}

func text(r *mcp.CallToolResult) (s string) {
	for _, c := range r.Content {
		if t, ok := c.(*mcp.TextContent); ok {
			s += t.Text
		}
	}
	return s
}

// schemaOf returns the output schema of a tool, without other properties.
func schemaOf(t *testing.T, s *mcp.ClientSession, name string) *jsonschema.Resolved {
	t.Helper()
	for tool, err := range s.Tools(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		if tool.Name != name {
			continue
		}
		b, err := json.Marshal(tool.OutputSchema)
		if err != nil {
			t.Fatal(err)
		}
		var schema jsonschema.Schema
		if err := json.Unmarshal(b, &schema); err != nil {
			t.Fatal(err)
		}
		schema.AdditionalProperties = &jsonschema.Schema{Not: &jsonschema.Schema{}}
		r, err := schema.Resolve(nil)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	t.Fatalf("there is no tool %s", name)
	return nil
}

// TestToolsAreShort bounds what all tools take of a model's memory. Tokenizers make of such text at
// most a token of 3.5 bytes.
func TestToolsAreShort(t *testing.T) {
	s, _ := connect(t, newPlace(), nil)
	for what, s := range map[string]*mcp.ClientSession{"a connection": s, "none": newParties(t).session} {
		r, err := s.ListTools(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		checkTools(t, what, r.Tools)
	}
}

func checkTools(t *testing.T, what string, tools []*mcp.Tool) {
	t.Helper()
	b, err := json.Marshal(tools)
	if err != nil {
		t.Fatal(err)
	}
	const most, bytesPerToken = 2500, 3.5
	if n := float64(len(b)) / bytesPerToken; n > most || len(tools) != 13 {
		t.Errorf("%s: %d tools have %.0f tokens", what, len(tools), n)
	} else {
		t.Logf("%s: %d tools: %d bytes, %.0f tokens", what, len(tools), len(b), n)
	}
	for _, tool := range tools {
		if tool.OutputSchema == nil || tool.Description == "" {
			t.Errorf("%s has no schema of its results, or no description", tool.Name)
		}
	}
}

const sample = "```bash name=a\ntrue\n```\n"

// TestSessionOfConnection: a sandbox is made when it is first needed; a turn on its branch, a merge
// and the end of the connection end it.
func TestSessionOfConnection(t *testing.T) {
	p := newPlace()
	p.output = "out"
	s, _ := connect(t, p, nil)
	call(t, s, "run_turn", map[string]any{"document": sample})
	out := call(t, s, "exec", map[string]any{"command": "one"})
	if out["exit_code"] != 3.0 || out["stdout"] != "out" {
		t.Errorf("exec: %v", out)
	}
	call(t, s, "exec", map[string]any{"command": "two"})
	call(t, s, "exec", map[string]any{"command": "b", "branch": "b"})
	call(t, s, "snapshot", nil)
	call(t, s, "run_turn", map[string]any{"document": sample})
	call(t, s, "exec", map[string]any{"command": "three"})
	call(t, s, "fork", map[string]any{"branch": "c", "turn": "@1"})
	call(t, s, "merge", map[string]any{"from": "@b"})
	_ = s.Close()
	<-p.closed
	got := strings.Join(p.noted(), "; ")
	// fork and merge keep the work of both branches, in any order
	want := "run s main; create s main; exec one; exec two; create s b; exec b; commit; remove; " +
		"run s main; create s main; exec three; commit; commit; fork s@1 c; remove; " +
		"merge s@b main; remove"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestEndedSandbox: a sandbox that has ended meanwhile is made again.
func TestEndedSandbox(t *testing.T) {
	p := newPlace()
	s, _ := connect(t, p, nil)
	call(t, s, "exec", map[string]any{"command": "one"})
	p.mu.Lock()
	clear(p.boxes)
	p.mu.Unlock()
	call(t, s, "exec", map[string]any{"command": "two"})
	if got := strings.Join(p.noted(), "; "); got !=
		"create s main; exec one; create s main; exec two" {
		t.Error(got)
	}
}

// TestManySandboxes: a connection has few sandboxes at a time.
func TestManySandboxes(t *testing.T) {
	s, _ := connect(t, newPlace(), nil)
	for _, b := range []string{"a", "b", "c", "d"} {
		call(t, s, "exec", map[string]any{"command": "x", "branch": b})
	}
	args := map[string]any{"command": "x", "branch": "e"}
	r, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "exec", Arguments: args})
	if err != nil || !r.IsError || !strings.Contains(text(r), "has 4 sandboxes") {
		t.Errorf("%v %s", err, text(r))
	}
	call(t, s, "run_turn", map[string]any{"document": sample, "branch": "a"})
	call(t, s, "exec", args)
}

// TestHistory calls the tools that read sessions.
func TestHistory(t *testing.T) {
	p := newPlace()
	s, _ := connect(t, p, nil)
	if out := call(t, s, "log", nil); len(out["turns"].([]any)) != 1 {
		t.Errorf("log: %v", out)
	}
	out := call(t, s, "diff", map[string]any{"from": "1", "to": "@b", "patch": true})
	if n := len(out["patch"].(string)); n < 10_000 || n > 20_000 || out["patch_uri"] == nil {
		t.Errorf("the patch has %d bytes, %v", n, out["patch_uri"])
	}
	call(t, s, "compare", map[string]any{"turns": []string{"t_1", "other@2"}})
	out = call(t, s, "replay", map[string]any{"turn": "~1"})
	if n := len(out["differences"].([]any)); n != 200 || out["more"] != 303.0 {
		t.Errorf("replay: %d differences, %v more", n, out["more"])
	}
	call(t, s, "verify", nil)
	want := "log s; diff s@1 s@b; compare t_1 other@2; replay s~1; verify s"
	if got := strings.Join(p.noted(), "; "); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestProgress: a turn's steps are told, and a long receipt is a resource.
func TestProgress(t *testing.T) {
	p := newPlace()
	p.receipt = strings.Repeat("line of a receipt\n", 5000)
	told := make(chan string, 100)
	s, _ := connect(t, p, func(m string) { told <- m })
	params := &mcp.CallToolParams{Name: "run_turn", Arguments: map[string]any{
		"document": "```bash name=long\ntrue\n```\n"}}
	params.SetProgressToken("p1")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { _, err := s.CallTool(ctx, params); ended <- err }()
	if m := <-told; m != "step 1 of 1: long" {
		t.Errorf("told %q", m)
	}
	cancel() // ends the turn
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	for !slices.Contains(p.noted(), "cancelled") {
		time.Sleep(time.Millisecond)
	}
	out := call(t, s, "run_turn", map[string]any{"document": sample})
	if n := len(out["receipt"].(string)); n > 17_000 || !strings.Contains(out["receipt"].(string), "cut") {
		t.Errorf("the receipt has %d bytes", n)
	}
	r, err := s.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: out["receipt_uri"].(string)})
	if err != nil || r.Contents[0].Text != p.receipt {
		t.Errorf("%v, or another receipt", err)
	}
}

// TestClientVanishes: a turn ends with the connection of its client, and so do the sandboxes.
func TestClientVanishes(t *testing.T) {
	p := newPlace()
	a, b := net.Pipe()
	s, _ := connectOver(t, p, &mcp.IOTransport{Reader: a, Writer: a},
		&mcp.IOTransport{Reader: b, Writer: b}, nil)
	call(t, s, "exec", map[string]any{"command": "one"})
	go func() {
		_, _ = s.CallTool(context.Background(), &mcp.CallToolParams{Name: "run_turn",
			Arguments: map[string]any{"document": "```bash name=long\ntrue\n```\n", "branch": "b"}})
	}()
	<-p.begun
	_ = a.Close()
	<-p.closed
	got := p.noted()
	if !slices.Contains(got, "cancelled") || !slices.Contains(got, "remove") {
		t.Error(got)
	}
}

// TestDoorCloses: the end of the server ends what runs.
func TestDoorCloses(t *testing.T) {
	p := newPlace()
	s, d := connect(t, p, nil)
	go func() {
		_, _ = s.CallTool(context.Background(), &mcp.CallToolParams{Name: "run_turn",
			Arguments: map[string]any{"document": "```bash name=long\ntrue\n```\n"}})
	}()
	<-p.begun
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := d.Close(ctx); err != nil {
		t.Error(err)
	}
	<-p.closed
}

// TestTimeout: a command without more time is killed, and says so.
func TestTimeout(t *testing.T) {
	s, _ := connect(t, newPlace(), nil)
	out := call(t, s, "exec", map[string]any{"command": "sleep", "timeout": 0.01})
	if out["timed_out"] != true || out["exit_code"] != 124.0 {
		t.Error(out)
	}
}

// TestLongOutput: an output of more than is kept is cut, and the command goes on.
func TestLongOutput(t *testing.T) {
	p := newPlace()
	p.output = strings.Repeat("0123456789abcdef", 1<<17) // of 2 MiB
	s, _ := connect(t, p, nil)
	uri := ""
	for n := range 18 {
		out := call(t, s, "exec", map[string]any{"command": "x"})
		if n := len(out["stdout"].(string)); n > 17_000 {
			t.Errorf("%d bytes inline", n)
		}
		if next := out["stdout_uri"].(string); uri == "" {
			uri = next
		} else if n < 17 {
			continue
		} else if r, err := s.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: next}); err != nil ||
			len(r.Contents[0].Text) < 1<<20 || !strings.Contains(r.Contents[0].Text, "1048576 more bytes") {
			t.Errorf("%s: %v", next, err)
		}
	}
	if _, err := s.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri}); err == nil {
		t.Error("all outputs are kept")
	}
}

// TestHostile: what a hostile client asks for is an error, and shows nothing of the host.
func TestHostile(t *testing.T) {
	p := newPlace()
	s, _ := connect(t, p, nil)
	long := strings.Repeat("x", 1<<21)
	for _, c := range []struct {
		tool string
		args any
		want string
	}{
		{"run_turn", map[string]any{}, "document: is missing"},
		{"run_turn", map[string]any{"document": long}, "may have 1048576"},
		{"run_turn", map[string]any{"document": "---\nfiles: [/etc/passwd]\n---\n" + sample}, "file of the host"},
		{"run_turn", map[string]any{"document": "---\nfiles: [a:b]\n---\n" + sample}, "file of the host"},
		{"run_turn", map[string]any{"document": sample, "grant": "files"}, `"grant": is no argument`},
		{"run_turn", map[string]any{"document": 5}, "document: is the number 5, not a string"},
		{"run_turn", []any{}, "the arguments: are an array, not an object"},
		{"exec", map[string]any{"command": "a\x00b"}, "zero byte"},
		{"exec", map[string]any{"command": long}, "more than"},
		{"exec", map[string]any{"command": "x", "timeout": 1e300}, "is not from 0"},
		{"read_file", map[string]any{"path": "a\x00b"}, "zero byte"},
		{"read_file", map[string]any{"path": "x"}, "no agent at $HOME/sock"},
		{"read_file", map[string]any{"path": "x", "limit": 1 << 40}, "limit: is not 1 to"},
		{"write_file", map[string]any{"path": "x"}, "both missing"},
		{"write_file", map[string]any{"path": "x", "text": "", "base64": "AA=="}, "both there"},
		{"write_file", map[string]any{"path": "x", "base64": "!"}, "base64: is not base64"},
		{"list_files", map[string]any{"path": long}, "path: is too long"},
		{"list_files", map[string]any{"after": long}, "after: is too long"},
		{"exec", map[string]any{"command": "a", "cwd": "\x00"}, "cwd: has a zero byte"},
		{"read_file", map[string]any{"path": "x", "offset": -1}, "offset: is negative"},
		{"compare", map[string]any{"turns": []string{"1", "a b"}}, "turns: is no reference"},
		{"log", map[string]any{"turn": "a b"}, "turn: is no reference"},
		{"log", map[string]any{"turn": long}, "no reference"},
		{"log", map[string]any{"limit": -1}, "is not 1 to"},
		{"compare", map[string]any{"turns": []string{"1"}}, "not 2 to 10"},
		{"merge", map[string]any{"from": "1", "prefer": "mine"}, "neither ours nor theirs"},
	} {
		r, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: c.tool, Arguments: c.args})
		if err != nil {
			t.Errorf("%s: %v", c.tool, err)
		} else if got := text(r); !r.IsError || !strings.Contains(got, c.want) || len(got) > 5000 {
			t.Errorf("%s: %.200s, without %q", c.tool, got, c.want)
		}
	}
	for _, e := range p.noted() {
		if strings.HasPrefix(e, "run ") {
			t.Error("a document ran")
		}
	}
}

// TestResources reads receipts and files by their addresses.
func TestResources(t *testing.T) {
	p := newPlace()
	p.receipt = "receipt\n"
	s, _ := connect(t, p, nil)
	for uri, want := range map[string]string{
		"turn://receipts/t_1":              "receipt t_1",
		"turn://receipts/s@fix/auth":       "receipt s@fix/auth",
		"turn://files/t_1/workspace/a%20b": "open t_1 /workspace/a b",
		"turn://files/3/workspace/x":       "open s@3 /workspace/x",
		"turn://document-format":           "",
	} {
		if _, err := s.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri}); err != nil {
			t.Errorf("%s: %v", uri, err)
		}
		if want != "" && !slices.Contains(p.noted(), want) {
			t.Errorf("%s: %v, without %q", uri, p.noted(), want)
		}
	}
	for _, uri := range []string{"file:///etc/passwd", "turn://files/t_1", "turn://files/t_1/huge",
		"turn://outputs/1", "turn://receipts/", "turn://receipts/a%00b", "turn://files/t_1/a%00b", "turn://receipts/%zz"} {
		if _, err := s.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri}); err == nil {
			t.Errorf("%s was read", uri)
		}
	}
}

// TestMaxResource: a resource that is longer as JSON than a message may be is an error, and the
// connection goes on.
func TestMaxResource(t *testing.T) {
	p := newPlace()
	near, far := mcp.NewInMemoryTransports()
	s, _ := connectTo(t, p, near, far, mcpdoor.Options{MaxResource: 1000}, nil)
	for _, c := range []struct {
		receipt string
		fits    bool
	}{{strings.Repeat("x", 850), true}, {strings.Repeat("x", 1000), false}, {strings.Repeat("\n", 490), false},
		{strings.Repeat("\x00", 160), false}, {strings.Repeat("\xff", 600), true}, {strings.Repeat("\xff", 750), false}} {
		p.receipt = c.receipt
		r, err := s.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "turn://receipts/t_1"})
		if c.fits && (err != nil || len(r.Contents[0].Text)+len(r.Contents[0].Blob) != len(c.receipt)) ||
			!c.fits && (err == nil || !strings.Contains(err.Error(), "as JSON")) {
			t.Errorf("%d of %q: %v", len(c.receipt), c.receipt[:1], err)
		}
	}
}

// TestPrompts: the prompts have the format, whose example is a document.
func TestPrompts(t *testing.T) {
	s, _ := connect(t, newPlace(), nil)
	all, err := s.ListPrompts(t.Context(), nil)
	if err != nil || len(all.Prompts) != 2 {
		t.Fatalf("%v, %v", all, err)
	}
	for _, p := range all.Prompts {
		r, err := s.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: p.Name,
			Arguments: map[string]string{"task": "count to 3"}})
		if err != nil {
			t.Fatal(err)
		}
		got := r.Messages[0].Content.(*mcp.TextContent).Text
		_, example, _ := strings.Cut(got, "````markdown\n")
		example, _, _ = strings.Cut(example, "````\n")
		doc, err := document.Parse("example.md", []byte(example))
		if err != nil || len(doc.Steps) != 1 || !strings.Contains(got, "count to 3") {
			t.Errorf("%s: %v\n%s", p.Name, err, example)
		}
	}
}
