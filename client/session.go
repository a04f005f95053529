package client

import (
	"context"
	"io"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/executor"
)

// RunOptions are the settings of a turn. They win over the document's front matter.
type RunOptions struct {
	Name string // of the document, for errors; empty: document.md
	// Session and Branch are another session than the client's, and another branch.
	Session, Branch string

	Image   string
	Env     map[string]string
	Secrets map[string]string // masked, and never stored
	Timeout time.Duration
	CPUs    int
	Memory  turnstone.Bytes
	Disk    turnstone.Bytes
	Network *bool // whether there is a network

	Dir string // the folder of the document's files; empty: the current one
	Add []document.Transfer
	Get []document.Transfer

	Deterministic *bool
	Checkpoint    turnstone.Checkpoint
	Commands      bool // list all commands in the Markdown

	// Observer is told of the turn's progress; nil: nobody is.
	Observer executor.Observer
}

// A Receipt is the result of a turn. Its Steps have their Commands.
type Receipt struct {
	turnstone.TurnReport
	Markdown string // the receipt itself, which can be run again
	Passed   bool
}

// Run runs a markdown document as a turn of the client's session. A step that fails is no error: see
// Receipt.Passed. When ctx ends, the turn is canceled, and the receipt has its end.
func (c *Client) Run(ctx context.Context, markdown string, o RunOptions) (*Receipt, error) {
	doc, err := document.Parse(first(o.Name, "document.md"), []byte(markdown))
	if err != nil {
		return nil, err
	}
	req := executor.Request{Document: doc, Dir: o.Dir, Session: o.Session, Branch: o.Branch,
		Image: o.Image, Env: pairs(o.Env), Secrets: pairs(o.Secrets), Timeout: o.Timeout, CPUs: o.CPUs,
		Memory: o.Memory, Disk: o.Disk, Network: o.Network, Add: o.Add, Get: o.Get,
		Deterministic: o.Deterministic, Checkpoint: o.Checkpoint, Commands: o.Commands}
	if req.Session == "" {
		req.Session, req.Branch = c.SessionName(), first(o.Branch, c.branch)
	}
	report, err := c.host.Run(ctx, req, o.Observer)
	if report == nil {
		return nil, err
	}
	return &Receipt{TurnReport: *report, Markdown: report.Receipt,
		Passed: report.Result == turnstone.ResultPassed}, err
}

// Sessions returns the sessions that the client may use.
func (c *Client) Sessions(ctx context.Context) ([]turnstone.SessionInfo, error) {
	return c.host.Sessions(ctx)
}

// A Session is the turns of a session. In its methods, a turn is a number, a branch, or a tag of the
// session, such as "3" or "main~1"; a turn's ID; or SESSION@TURN. An empty one is the newest of main.
type Session struct {
	client *Client
	name   string
}

// Session returns a session by name or ID; empty: that of the client. It need not exist yet.
func (c *Client) Session(name string) *Session {
	if name == "" {
		name = c.SessionName()
	}
	return &Session{c, name}
}

// Name returns the session's name or ID.
func (s *Session) Name() string { return s.name }

// ref returns a turn of this session as a reference.
func (s *Session) ref(turn string) string {
	switch {
	case turn == "":
		return s.name
	case strings.HasPrefix(turn, "t_") || strings.Contains(turn, "@"):
		return turn
	}
	return s.name + "@" + turn
}

// Log returns the turns, newest first, at most limit of them if it is not 0, with branches and tags.
func (s *Session) Log(ctx context.Context, limit int) (*turnstone.Graph, error) {
	return s.client.host.Log(ctx, s.name, limit)
}

// Show returns a turn.
func (s *Session) Show(ctx context.Context, turn string) (*turnstone.TurnInfo, error) {
	return s.client.host.Show(ctx, s.ref(turn))
}

// Receipt returns the receipt of a turn.
func (s *Session) Receipt(ctx context.Context, turn string) (string, error) {
	b, err := s.client.host.Receipt(ctx, s.ref(turn))
	return string(b), err
}

// Fork makes a branch at a turn.
func (s *Session) Fork(ctx context.Context, turn, branch string) (turnstone.Branch, error) {
	return s.client.host.Fork(ctx, s.ref(turn), branch)
}

// Tag names a turn.
func (s *Session) Tag(ctx context.Context, turn, name string) (turnstone.Tag, error) {
	return s.client.host.Tag(ctx, s.ref(turn), name)
}

// Diff compares the states of two turns; with an empty to, a turn with its parent.
func (s *Session) Diff(ctx context.Context, from, to string) (*turnstone.StateDiff, error) {
	q := turnstone.DiffRequest{From: s.ref(from), Text: true, Stat: true}
	if to != "" {
		q.To = s.ref(to)
	}
	return s.client.host.Diff(ctx, q)
}

// MergeOptions are the settings of a merge.
type MergeOptions struct {
	Side    turnstone.Side // resolves conflicts; empty: they are reported
	DryRun  bool           // only report what would happen
	Message string         // title of the turn
}

// Merge merges a turn into a branch; an empty one is main.
func (s *Session) Merge(ctx context.Context, from, into string, o MergeOptions) (*turnstone.MergeReport,
	error) {
	return s.client.host.Merge(ctx, executor.MergeRequest{From: s.ref(from), Into: s.ref(first(into, "main")),
		Default: o.Side, DryRun: o.DryRun, Message: o.Message})
}

// Replay runs a turn again, and compares its results. The new run is in no session.
func (s *Session) Replay(ctx context.Context, turn string, secrets map[string]string) (
	*turnstone.ReplayReport, error) {
	return s.client.host.Replay(ctx, s.ref(turn), executor.ReplayOptions{Secrets: pairs(secrets)}, nil)
}

// Compare lays turns side by side: results, steps and files.
func (s *Session) Compare(ctx context.Context, turns ...string) (*turnstone.CompareReport, error) {
	var refs []string
	for _, t := range turns {
		refs = append(refs, s.ref(t))
	}
	return s.client.host.Compare(ctx, refs)
}

// Verify verifies all turns, with the keys that the client trusts.
func (s *Session) Verify(ctx context.Context) (*turnstone.VerifyReport, error) {
	return s.client.host.Verify(ctx, turnstone.VerifyRequest{Ref: s.name, All: true})
}

// Export writes the session to w, as a file that Import and turn session import read.
func (s *Session) Export(ctx context.Context, w io.Writer) error {
	_, err := s.client.host.Export(ctx, executor.ExportRequest{Session: s.name}, w)
	return err
}

// Files lists the files of a turn's state below a path.
func (s *Session) Files(ctx context.Context, turn, path string, each func(turnstone.FileInfo) error) error {
	return s.client.host.ListFiles(ctx, s.ref(turn), path, true, each)
}

// Open opens a file of a turn's state.
func (s *Session) Open(ctx context.Context, turn, path string) (io.ReadCloser, error) {
	return s.client.host.OpenFile(ctx, s.ref(turn), path)
}

// Remove removes the session.
func (s *Session) Remove(ctx context.Context) error {
	_, err := s.client.host.RemoveSession(ctx, s.name)
	return err
}
