package plain

import (
	"cmp"
	"net/http"
	"strconv"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/server/auth"
)

// maxTurn bounds the time of a turn whose document names none, or a longer one.
const maxTurn = time.Hour

// ResultHeader has the result of a turn: passed, failed, timeout or error.
const ResultHeader = "Turnstone-Result"

// run runs a document as a turn without a session, and answers its receipt. The caller is as
// untrusted as the document's author: nothing is granted but what the node's configuration grants.
func (s *Service) run(w http.ResponseWriter, r *http.Request, p auth.Principal) error {
	if err := p.Allow(auth.Request{Scope: auth.TurnsRun}); err != nil {
		return err
	}
	body, err := read(w, r, maxDocument)
	if err != nil {
		return err
	}
	doc, err := parseDocument(body)
	if err != nil {
		return err
	}
	if err := p.Allow(auth.Request{Scope: auth.TurnsRun,
		Template: cmp.Or(doc.Front.Image, executor.DefaultImage)}); err != nil {
		return err
	}
	t, err := s.o.Tenant(r.Context(), p.Tenant)
	if err != nil {
		return err
	}
	ctx := r.Context()
	if t.Limit != nil {
		ctx = t.Limit(ctx)
	}
	timeout := min(cmp.Or(doc.Front.Timeout, maxTurn), maxTurn)
	report, err := t.Runner.Run(ctx, executor.Request{Document: doc, Piped: true, Timeout: timeout},
		nil)
	if report == nil {
		return cmp.Or(err, error(turnstone.Errorf("plain.run", turnstone.KindInternal, "the turn",
			"has no report")))
	}
	h := w.Header()
	h.Set("Content-Type", "text/markdown; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Length", strconv.Itoa(len(report.Receipt)))
	h.Set(ResultHeader, string(report.Result))
	_, _ = w.Write([]byte(report.Receipt))
	return nil
}

// parseDocument parses a document that asks for nothing of the caller's machine, and for no state.
func parseDocument(b []byte) (*document.Document, error) {
	doc, err := document.Parse("turn.md", b)
	if err != nil {
		return nil, turnstone.NewError("plain.run", turnstone.KindInvalid, "the document", err)
	}
	what := ""
	switch f := doc.Front; {
	case f.Session != "" || f.Branch != "":
		what = "a session"
	case len(f.Files) > 0:
		what = "files"
	case f.Home != "":
		what = "a home"
	}
	if what != "" {
		return nil, turnstone.Errorf("plain.run", turnstone.KindInvalid, "the document",
			"asks for %s, which a turn in the clear does not have", what).
			WithHint("run it with turn run, whose channel is encrypted to the node")
	}
	return doc, nil
}
