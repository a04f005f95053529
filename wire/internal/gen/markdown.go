package main

import (
	"fmt"
	"strings"
)

// A page collects the reference.
type page struct {
	strings.Builder
	p     *protocol
	types map[string]*typ
	users map[string][]string // links to the uses of a type, by its full name
}

func (g *page) f(form string, args ...any) { fmt.Fprintf(g, form, args...) }

// reference returns docs/wire.md: intro and the reference of protocol.json.
func reference(p *protocol, intro string) []byte {
	g := &page{p: p, types: p.types(), users: make(map[string][]string)}
	g.collectUsers()
	g.WriteString(strings.TrimRight(intro, "\n"))
	g.f("\n\n## Domains\n\nVersion %s.%s. *Optional* fields may be absent.\n\n", p.Version.Major,
		p.Version.Minor)
	g.f("| domain | commands | events |\n|---|---|---|\n")
	for _, d := range p.Domains {
		var commands, events []string
		for _, c := range d.Commands {
			commands = append(commands, link(c.Name, d.Domain+"."+c.Name))
		}
		for _, e := range d.Events {
			events = append(events, link(e.Name, d.Domain+"."+e.Name))
		}
		g.f("| %s | %s | %s |\n", link(d.Domain, d.Domain), strings.Join(commands, ", "),
			strings.Join(events, ", "))
	}
	for _, d := range p.Domains {
		g.domain(d)
	}
	return []byte(g.String())
}

// collectUsers finds the uses of each type, once for each place.
func (g *page) collectUsers() {
	note := func(d *domain, name string, lists ...[]*prop) {
		for _, props := range lists {
			for _, p := range props {
				ref := p.Ref
				if p.Items != nil {
					ref = p.Items.Ref
				}
				if ref == "" {
					continue
				}
				ref = full(d, ref)
				l := link(d.Domain+"."+name, d.Domain+"."+name)
				if u := g.users[ref]; len(u) == 0 || u[len(u)-1] != l {
					g.users[ref] = append(u, l)
				}
			}
		}
	}
	for _, d := range g.p.Domains {
		for _, t := range d.Types {
			note(d, t.ID, t.Properties)
		}
		for _, c := range d.Commands {
			note(d, c.Name, c.Parameters, c.Returns)
		}
		for _, e := range d.Events {
			note(d, e.Name, e.Parameters)
		}
	}
}

func (g *page) domain(d *domain) {
	g.f("\n%s\n## %s\n\n%s\n", anchor(d.Domain), d.Domain, d.Description)
	for _, c := range d.Commands {
		what := "command"
		if c.Host {
			what = "command of the host"
		}
		g.heading(d, c.Name, what, c.Description)
		g.props(d, "parameter", c.Parameters)
		g.props(d, "result", c.Returns)
	}
	for _, e := range d.Events {
		g.heading(d, e.Name, "event", e.Description)
		g.props(d, "parameter", e.Parameters)
	}
	for _, t := range d.Types {
		g.heading(d, t.ID, "type: "+t.Type, t.Description)
		if len(t.Enum) > 0 {
			g.f("\nOne of %s.\n", values(t.Enum))
		}
		g.props(d, "property", t.Properties)
		if users := g.users[d.Domain+"."+t.ID]; len(users) > 0 {
			g.f("\nUsed by %s.\n", strings.Join(users, ", "))
		}
	}
}

func (g *page) heading(d *domain, name, what, description string) {
	full := d.Domain + "." + name
	g.f("\n%s\n### %s\n\n*%s.* %s\n", anchor(full), full, what, description)
}

func (g *page) props(d *domain, what string, props []*prop) {
	if len(props) == 0 {
		return
	}
	g.f("\n| %s | type | |\n|---|---|---|\n", what)
	for _, p := range props {
		text := p.Description
		if len(p.Enum) > 0 {
			text += " One of " + values(p.Enum) + "."
		}
		if p.Optional {
			text = "*Optional.* " + text
		}
		g.f("| `%s` | %s | %s |\n", p.Name, g.typeOf(d, p), strings.ReplaceAll(text, "|", `\|`))
	}
}

func (g *page) typeOf(d *domain, p *prop) string {
	named := func(ref string) string { return link(ref, full(d, ref)) }
	switch {
	case p.Items != nil && p.Items.Ref != "":
		return "array of " + named(p.Items.Ref)
	case p.Items != nil:
		return "array of " + p.Items.Type
	case p.Ref != "" && p.Direction == "send":
		return named(p.Ref) + ", from the agent"
	case p.Ref != "" && p.Direction == "receive":
		return named(p.Ref) + ", to the agent"
	case p.Ref != "":
		return named(p.Ref)
	case p.Encoding != "":
		return p.Type + " (" + p.Encoding + ")"
	}
	return p.Type
}

func values(list []string) string {
	return "`" + strings.Join(list, "`, `") + "`"
}

func anchor(name string) string { return `<a id="` + id(name) + `"></a>` }

func link(text, name string) string { return "[" + text + "](#" + id(name) + ")" }

// id keeps the case of a name: Process.Exit is a type, Process.exit could be a command.
func id(name string) string { return strings.ReplaceAll(name, ".", "-") }
