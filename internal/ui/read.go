package ui

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/url"
	"unicode/utf8"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
)

// Bounds of answers.
const (
	maxTurns    = 20_000
	maxReceipt  = 512 << 10 // bytes of a receipt that are shown
	maxCommands = 5000
	maxEntries  = 2000 // of a folder, or of a comparison
	maxView     = 256 << 10
	maxPatch    = 64 << 10 // of a file
	maxPatches  = 1 << 20  // of a comparison
)

func (s *Server) routes() {
	s.mux.Handle("GET /api/start", get(s, s.start))
	s.mux.Handle("GET /api/sessions", get(s, s.sessions))
	s.mux.Handle("GET /api/log", get(s, s.tree))
	s.mux.Handle("GET /api/turn", get(s, s.turn))
	s.mux.Handle("GET /api/receipt", get(s, s.receipt))
	s.mux.Handle("GET /api/commands", get(s, s.commands))
	s.mux.Handle("GET /api/files", get(s, s.files))
	s.mux.Handle("GET /api/file", get(s, s.file))
	s.mux.Handle("GET /api/diff", get(s, s.diff))
	s.mux.Handle("GET /api/jobs", get(s, s.listJobs))
	s.mux.HandleFunc("GET /api/job", s.watchJob)
	s.mux.Handle("POST /api/cancel", post(s, s.cancelJob))
	s.mux.Handle("POST /api/run", post(s, s.run))
	s.mux.Handle("POST /api/replay", post(s, s.replay))
	s.mux.Handle("POST /api/verify", post(s, s.verify))
	s.mux.Handle("POST /api/merge", post(s, s.merge))
	s.mux.Handle("POST /api/fork", post(s, s.fork))
}

type sessionsOut struct {
	Place    string                  `json:"place"`
	Version  string                  `json:"version"`
	Sessions []turnstone.SessionInfo `json:"sessions"`
}

func (s *Server) sessions(ctx context.Context, _ url.Values) (sessionsOut, error) {
	list, err := s.place.Sessions.Sessions(ctx)
	if list == nil {
		list = []turnstone.SessionInfo{}
	}
	return sessionsOut{s.place.Name, turnstone.Version, list}, err
}

func (s *Server) tree(ctx context.Context, q url.Values) (*treeOut, error) {
	ref := q.Get("session")
	if err := checkRef("session", ref); err != nil {
		return nil, err
	}
	g, err := s.place.Sessions.Log(ctx, ref, maxTurns)
	if err != nil {
		return nil, err
	}
	return treeOf(g), nil
}

// ref returns the turn that a request names.
func ref(q url.Values) (string, error) {
	r := q.Get("ref")
	return r, checkRef("turn", r)
}

func (s *Server) turn(ctx context.Context, q url.Values) (*turnstone.TurnInfo, error) {
	r, err := ref(q)
	if err != nil {
		return nil, err
	}
	return s.place.Sessions.Show(ctx, r)
}

type receiptOut struct {
	Front string `json:"front"` // the front matter's YAML
	Body  []node `json:"body"`
	Size  int    `json:"size"` // of the whole receipt
	Cut   bool   `json:"cut"`  // Body has the beginning only
	// Evidence is the part with the signatures; empty: there is none.
	Evidence string `json:"evidence,omitempty"`
	// Source is the receipt as text, for a new turn.
	Source string `json:"source"`
}

func (s *Server) receipt(ctx context.Context, q url.Values) (out receiptOut, err error) {
	r, err := ref(q)
	if err != nil {
		return out, err
	}
	text, err := s.place.Evidence.Receipt(ctx, r)
	if err != nil {
		return out, err
	}
	return receiptOf(text), nil
}

func receiptOf(text []byte) (out receiptOut) {
	out.Size = len(text)
	if len(text) > maxReceipt { // signatures are at its end
		out.Cut, text = true, wholeRunes(text[:maxReceipt])
	} else if rest, _, found := document.CutEvidence(text); found {
		out.Evidence, text = string(bytes.TrimPrefix(text, rest)), rest
	}
	out.Source = string(text)
	front, body := cutFront(text)
	out.Front, out.Body = string(front), render(body)
	return out
}

type commandsOut struct {
	Steps []turnstone.TraceStepReport `json:"steps"`
	More  int                         `json:"more"` // commands that are not in Steps
}

func (s *Server) commands(ctx context.Context, q url.Values) (out commandsOut, err error) {
	r, err := ref(q)
	if err != nil {
		return out, err
	}
	report, n := turnstone.TraceReport{Steps: []turnstone.TraceStepReport{}}, 0
	err = s.place.Evidence.Trace(ctx, r, func(l turnstone.TraceLine) error {
		if l.Command != nil {
			if n++; n > maxCommands {
				out.More++
				return nil
			}
			c := *l.Command
			c.Text, c.Stdin = cut(c.Text, maxText), nil
			l.Command = &c
		}
		return report.Add(l)
	})
	out.Steps = report.Steps
	return out, err
}

var errEnough = errors.New("the answer is full")

type filesOut struct {
	Files []turnstone.FileInfo `json:"files"`
	More  bool                 `json:"more"`
}

func (s *Server) files(ctx context.Context, q url.Values) (out filesOut, err error) {
	r, err := ref(q)
	if err != nil {
		return out, err
	}
	path := q.Get("path")
	if err := checkPath(path); err != nil {
		return out, err
	}
	out.Files = []turnstone.FileInfo{}
	err = s.place.Files.ListFiles(ctx, r, path, false, func(f turnstone.FileInfo) error {
		if len(out.Files) == maxEntries {
			out.More = true
			return errEnough
		}
		out.Files = append(out.Files, f)
		return nil
	})
	if out.More {
		err = nil
	}
	return out, err
}

type fileOut struct {
	Text   string `json:"text"`
	Binary bool   `json:"binary"`
	More   bool   `json:"more"` // Text is the beginning
}

func (s *Server) file(ctx context.Context, q url.Values) (out fileOut, err error) {
	r, err := ref(q)
	if err != nil {
		return out, err
	}
	path := q.Get("path")
	if err := checkPath(path); err != nil {
		return out, err
	}
	f, err := s.place.Files.OpenFile(ctx, r, path)
	if err != nil {
		return out, err
	}
	b, err := io.ReadAll(io.LimitReader(f, maxView+1))
	if err = errors.Join(err, f.Close()); err != nil {
		return out, err
	}
	if len(b) > maxView {
		out.More, b = true, wholeRunes(b[:maxView])
	}
	if out.Binary = !utf8.Valid(b) || bytes.IndexByte(b, 0) >= 0; !out.Binary {
		out.Text = string(b)
	}
	return out, nil
}

// wholeRunes returns b without the beginning of a character at its end. What is no text stays.
func wholeRunes(b []byte) []byte {
	for n := 1; n < utf8.UTFMax && n <= len(b); n++ {
		if c := b[len(b)-n]; utf8.RuneStart(c) {
			if c >= utf8.RuneSelf && !utf8.FullRune(b[len(b)-n:]) {
				return b[:len(b)-n]
			}
			return b
		}
	}
	return b
}

type diffOut struct {
	turnstone.StateDiff
	More int `json:"more"` // files that are not in Files
}

// diff compares two turns, or a turn with its parent. Patches beyond the bounds are left out.
func (s *Server) diff(ctx context.Context, q url.Values) (out diffOut, err error) {
	from, to := q.Get("from"), q.Get("to")
	if err := checkRef("from", from); err != nil {
		return out, err
	}
	if to != "" {
		if err := checkRef("to", to); err != nil {
			return out, err
		}
	}
	d, err := s.place.Files.Diff(ctx, turnstone.DiffRequest{From: from, To: to, Stat: true, Text: true})
	if err != nil {
		return out, err
	}
	out.StateDiff = *d
	if len(d.Files) > maxEntries {
		out.More, out.Files = len(d.Files)-maxEntries, d.Files[:maxEntries]
	}
	left := maxPatches
	for i := range out.Files {
		f := &out.Files[i]
		f.Patch = cut(f.Patch, min(maxPatch, left))
		left = max(left-len(f.Patch), 0)
	}
	for i := range out.Env {
		for _, v := range []*string{out.Env[i].Old, out.Env[i].New} {
			if v != nil {
				*v = cut(*v, maxText)
			}
		}
	}
	return out, nil
}
