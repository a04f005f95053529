package plan

import (
	"cmp"
	"context"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/config"
	"turnstone.dev/turnstone/internal/netplan"
	"turnstone.dev/turnstone/internal/network"
	"turnstone.dev/turnstone/internal/plan/scripts"
	"turnstone.dev/turnstone/internal/template"
)

// CheckFront reports requests of doc's front matter that no machine can serve: network rules that
// open nothing, values that exclude each other, an image with an impossible name. It starts
// nothing, and reads no file. Errors are of kind Invalid, and name the document.
func CheckFront(doc *document.Document) error {
	if err := HasDocument(doc); err != nil {
		return err
	}
	if err := checkFront(doc); err != nil {
		return turnstone.NewError("executor.check", turnstone.KindInvalid, doc.Name, err).
			WithHint(turnstone.HintOf(err))
	}
	return nil
}

func checkFront(doc *document.Document) error {
	front := *doc
	front.Front.Files = nil
	// A caller may name a session at the run, and another machine may have more memory.
	req := Request{Document: &front, Session: cmp.Or(doc.Front.Session, "s"),
		Memory: turnstone.DefaultShape().Memory}
	p, err := ofTurn(req, template.DefaultWorkdir, false)
	if err != nil {
		return err
	}
	defer p.Close()
	if err := template.CheckName(p.Image); err != nil {
		return err
	}
	rules, mode := mergeRules(req, doc.Front)
	net := netplan.Rules{Mode: netplan.Mode{Record: mode.Record, Replay: mode.Replay},
		Asked: turnstone.NetworkSpec{Allow: rules.Allow, Deny: rules.Deny, Only: rules.HasAllow,
			Open: rules.Intercept}}
	if _, err := network.PolicyOf(&net.Asked); err != nil {
		return err
	}
	return net.Fits(p.networkUse())
}

// checkHost reports requests of the document of req that this host cannot serve: its limits, its
// locked policy, missing files. It starts nothing.
func checkHost(req Request, host Host) error {
	req.Session = unnamed(req, "s") // Asks reports the missing session
	a := &Authority{Request: req, Host: host}
	if err := a.Valid(); err != nil {
		return err
	}
	if req.Piped && !a.Granted("files") { // the files need a grant before they are checked
		front := *req.Document
		front.Front.Files = nil
		a.Request.Document = &front
	}
	p, err := Make(a, "", template.DefaultWorkdir)
	if err == nil {
		p.Close()
	}
	return err
}

// unnamed returns name if the document requests what requires a session and names no session, and
// "" otherwise.
func unnamed(req Request, name string) string {
	if (&Authority{Request: req}).needsSession() == "" {
		return ""
	}
	return name
}

// Asks lists the requests of doc that a run on a host with this configuration rejects without
// further flags, and the session that doc requires. piped says that doc came through a pipe.
func Asks(doc *document.Document, piped bool, host config.Config) []turnstone.Ask {
	a := &Authority{Request: Request{Document: doc, Piped: piped}, Host: Host{Config: host}}
	var all []turnstone.Ask
	if what := a.needsSession(); what != "" {
		all = append(all, turnstone.Ask{What: what + ", of a session", Flag: "--session NAME"})
		a.Request.Session = "NAME"
	}
	all = append(all, a.missing()...)
	if a.otherRecording() {
		of := doc.Front.NetworkRules.ReplayOf
		all = append(all, turnstone.Ask{Key: "network", Flag: "--network replay=" + of,
			What: "network: replay: " + of + ", of another session"})
	}
	return all
}

// otherRecording reports whether the document names a recording that may belong to another session.
// A run asks the store: see netrecord.
func (a *Authority) otherRecording() bool {
	front := a.front()
	if front.NetworkRules == nil || front.NetworkRules.ReplayOf == "" || a.Granted("network") {
		return false
	}
	of, _, _ := strings.Cut(front.NetworkRules.ReplayOf, "@")
	byID := func(s string) bool { return strings.HasPrefix(s, "s_") || strings.HasPrefix(s, "t_") }
	return front.Session == "" || of != front.Session && !byID(of) && !byID(front.Session)
}

// CheckScripts reports the steps of doc whose script bash cannot parse: see scripts.Check.
func CheckScripts(ctx context.Context, doc *document.Document) error {
	return scripts.Check(ctx, doc)
}
