package plan

import (
	"cmp"
	"runtime"
	"slices"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/driver"
	"turnstone.dev/turnstone/internal/template"
)

// Completed returns req with the values of its defaults where the document and the caller leave
// them open. They are requests of the document then, with its authority.
func (req Request) Completed() Request {
	req.Document = req.Document.With(req.Defaults, req.Session)
	if req.Document != nil {
		req.Substrate = cmp.Or(req.Substrate, req.Document.Defaults.Substrate)
	}
	return req
}

// validDefaults checks what only defaults ask for: a guest that this host has, and a branch that
// they allow.
func (a *Authority) validDefaults() error {
	def, front := a.Request.Document.Defaults, a.front()
	if err := guestHere(def.Guest, def.Place); err != nil {
		return err
	}
	if cmp.Or(a.Request.Session, front.Session) == "" {
		return nil
	}
	return def.CheckBranch(cmp.Or(a.Request.Branch, front.Branch, DefaultBranch))
}

// bookworm is the guest of templates on Debian 12.
const bookworm = "bookworm-amd64"

// guestHere returns why no sandbox of this host has a guest; nil: some have.
func guestHere(guest, place string) error {
	fail := func(hint, format string, args ...any) error {
		return turnstone.Errorf(op, turnstone.KindUnavailable, inPlace("guest "+guest, place),
			format, args...).WithHint(hint)
	}
	system, arch, _ := strings.Cut(guest, "-")
	switch {
	case guest == "":
		return nil
	case arch != runtime.GOARCH:
		return fail("use a host of that architecture, or leave guest out",
			"guests have the architecture of their host, which is %s", runtime.GOARCH)
	case system == "noble":
		return fail("name an image of Ubuntu, such as image = \"ubuntu:24.04\", and leave guest out",
			"templates are made of Debian 12 (bookworm), not of Ubuntu 24.04 (noble)")
	case guest != bookworm:
		return fail("use "+bookworm, "no such guest is known")
	}
	return nil
}

// fitsGuest returns why a template does not have the guest that is asked for.
func (p *Plan) fitsGuest(spec *template.Spec) error {
	if p.guest == "" || spec.Guest() == p.guest {
		return nil
	}
	return turnstone.Errorf(op, turnstone.KindUnavailable, inPlace("guest "+p.guest, p.place),
		"the image %s is not made of Debian 12 by turn", p.Image).
		WithHint("use a template on debian:bookworm, or leave guest out")
}

// RequiredByDefaults says which isolation and substrate the defaults of p's document require, for a
// message; empty: none.
func (p *Plan) RequiredByDefaults() string {
	doc := p.authority.Request.Document
	def := doc.Defaults
	var what []string
	if doc.Inherits("isolation") && p.Isolation != document.IsolationAny {
		what = append(what, "isolation: "+string(p.Isolation))
	}
	if def.Substrate != "" && p.Driver == def.Substrate && def.Substrate != driver.Auto {
		what = append(what, "substrate: "+def.Substrate)
	}
	if len(what) == 0 {
		return ""
	}
	return inPlace(strings.Join(what, ", "), def.Place)
}

// inPlace adds the place of a value to what a message is about.
func inPlace(what, place string) string {
	if place == "" {
		return what
	}
	return what + " (" + place + ")"
}

// placed adds the manifest to an error about a value that comes from it.
func (a *Authority) placed(err error) error {
	e, is := err.(*turnstone.Error)
	doc := a.Request.Document
	if !is || doc == nil || doc.Defaults.Place == "" {
		return err
	}
	key, _, _ := strings.Cut(e.Subject, " ")
	if !slices.Contains(doc.Inherited, strings.TrimSuffix(key, ":")) {
		return err
	}
	c := *e
	c.Subject = inPlace(e.Subject, doc.Defaults.Place)
	return &c
}
