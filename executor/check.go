package executor

import (
	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/network"
	"turnstone.dev/turnstone/template"
)

// CheckFront looks for what doc's front matter asks for and no run of it could have, on
// any machine: network rules that open nothing, things that exclude each other, an image
// that nothing can be called. It starts nothing, and looks at no file. Errors are of kind
// Invalid, and name the document.
func CheckFront(doc *document.Document) error {
	if err := checkFront(doc); err != nil {
		return &turnstone.Error{Op: "executor.check", Kind: turnstone.Invalid, Subject: doc.Name, Err: err, Hint: turnstone.HintOf(err)}
	}
	return nil
}

func checkFront(doc *document.Document) error {
	front := *doc
	front.Front.Files = nil
	// A session may be named when it is run, and this machine's memory is not the next one's.
	req := Request{Document: &front, Session: or(doc.Front.Session, "s"), Memory: turnstone.DefaultShape().Memory}
	p, err := planTurn(req, template.DefaultWorkdir)
	if err != nil {
		return err
	}
	defer p.close()
	if err := template.CheckName(p.image); err != nil {
		return err
	}
	rules, mode := mergeRules(req, doc.Front)
	p.net.record, p.net.replay = mode.Record, mode.Replay
	p.net.asked = network.Spec{Allow: rules.Allow, Deny: rules.Deny, Only: rules.HasAllow, Open: rules.Intercept}
	if _, err := p.net.asked.Policy(); err != nil {
		return err
	}
	return p.net.fits(p)
}
