package ui

import (
	"bytes"
	"net/url"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	east "github.com/yuin/goldmark/extension/ast"
	"github.com/yuin/goldmark/text"
	"github.com/yuin/goldmark/util"
)

// A node is a part of a receipt. The page makes an element of each kind that it knows, and text of
// the rest.
type node struct {
	Kind  string `json:"k"`
	Text  string `json:"t,omitempty"` // of text, code and html; the language of a block of code is Info
	Info  string `json:"i,omitempty"`
	Level int    `json:"l,omitempty"` // of a heading; the first number of an ordered list
	Href  string `json:"h,omitempty"` // http or https; empty: the link leads nowhere
	Kids  []node `json:"c,omitempty"`
}

// Bounds of a receipt's tree.
const (
	maxDepth = 40
	maxNodes = 100_000
)

// cutFront splits the front matter from a document, without its fences.
func cutFront(src []byte) (front, body []byte) {
	const fence = "---"
	first, rest, found := bytes.Cut(src, []byte("\n"))
	if !found || strings.TrimRight(string(first), " \t\r") != fence {
		return nil, src
	}
	for at := 0; at < len(rest); {
		line, _, _ := bytes.Cut(rest[at:], []byte("\n"))
		end := at + len(line)
		if strings.TrimRight(string(line), " \t\r") == fence {
			return rest[:at], rest[min(end+1, len(rest)):]
		}
		at = end + 1
	}
	return nil, src
}

// render parses markdown. Raw HTML stays text.
func render(src []byte) []node {
	p := goldmark.New(goldmark.WithExtensions(extension.Table, extension.Strikethrough)).Parser()
	r := renderer{src: src, left: maxNodes}
	kids := r.kids(p.Parse(text.NewReader(src)), 0)
	if kids == nil {
		kids = []node{}
	}
	return kids
}

type renderer struct {
	src  []byte
	left int // nodes
}

// kids returns the children of n. Beyond the bounds, they are the text of n's lines.
func (r *renderer) kids(n ast.Node, depth int) (list []node) {
	for c := n.FirstChild(); c != nil; c = c.NextSibling() {
		if r.left <= 0 {
			return append(list, node{Kind: "text", Text: "…"})
		}
		r.left--
		if depth >= maxDepth {
			list = append(list, node{Kind: "text", Text: r.flat(c)})
			continue
		}
		one := r.node(c, depth)
		if last := len(list) - 1; one.Kind == "text" && last >= 0 && list[last].Kind == "text" {
			list[last].Text += one.Text
			continue
		}
		list = append(list, one)
	}
	return list
}

// flat returns the text of what is nested too deeply, without recursion.
func (r *renderer) flat(top ast.Node) string {
	var b strings.Builder
	for n := top; n != nil; {
		switch t := n.(type) {
		case *ast.Text:
			b.Write(t.Segment.Value(r.src))
			b.WriteByte(' ')
		case *ast.CodeBlock, *ast.FencedCodeBlock, *ast.HTMLBlock:
			b.WriteString(r.lines(n))
		}
		if n.FirstChild() != nil {
			n = n.FirstChild()
			continue
		}
		for n != top && n.NextSibling() == nil {
			n = n.Parent()
		}
		if n == top {
			break
		}
		n = n.NextSibling()
	}
	return b.String()
}

func (r *renderer) node(n ast.Node, depth int) node {
	switch n := n.(type) {
	case *ast.Text:
		t := r.plain(n.Segment.Value(r.src), n.IsRaw())
		if n.HardLineBreak() || n.SoftLineBreak() {
			t += "\n"
		}
		return node{Kind: "text", Text: t}
	case *ast.String:
		return node{Kind: "text", Text: r.plain(n.Value, n.IsRaw())}
	case *ast.FencedCodeBlock:
		info := ""
		if n.Info != nil {
			info = string(n.Info.Segment.Value(r.src))
		}
		return node{Kind: "pre", Text: r.lines(n), Info: info}
	case *ast.CodeBlock:
		return node{Kind: "pre", Text: r.lines(n)}
	case *ast.HTMLBlock:
		t := r.lines(n)
		if n.HasClosure() {
			t += string(n.ClosureLine.Value(r.src))
		}
		return node{Kind: "html", Text: t}
	case *ast.RawHTML:
		var b strings.Builder
		for i := range n.Segments.Len() {
			at := n.Segments.At(i)
			b.Write(at.Value(r.src))
		}
		return node{Kind: "text", Text: b.String()}
	case *ast.AutoLink:
		label := string(n.Label(r.src))
		return node{Kind: "a", Href: target(n.URL(r.src)), Kids: []node{{Kind: "text", Text: label}}}
	case *ast.Link:
		return node{Kind: "a", Href: target(n.Destination), Kids: r.kids(n, depth+1)}
	case *ast.Image: // no picture is fetched
		return node{Kind: "a", Info: "image", Href: target(n.Destination), Kids: r.kids(n, depth+1)}
	}
	return r.container(n, depth)
}

func (r *renderer) container(n ast.Node, depth int) (out node) {
	out.Kids = r.kids(n, depth+1)
	switch n := n.(type) {
	case *ast.Heading:
		out.Kind, out.Level = "h", n.Level
	case *ast.Paragraph:
		out.Kind = "p"
	case *ast.TextBlock:
		out.Kind = "span"
	case *ast.Blockquote:
		out.Kind = "quote"
	case *ast.ThematicBreak:
		out.Kind = "hr"
	case *ast.List:
		if out.Kind = "ul"; n.IsOrdered() {
			out.Kind, out.Level = "ol", n.Start
		}
	case *ast.ListItem:
		out.Kind = "li"
	case *ast.CodeSpan:
		out.Kind = "code"
	case *ast.Emphasis:
		if out.Kind = "em"; n.Level > 1 {
			out.Kind = "strong"
		}
	case *east.Strikethrough:
		out.Kind = "del"
	case *east.Table:
		out.Kind = "table"
	case *east.TableHeader:
		out.Kind, out.Info = "tr", "head"
	case *east.TableRow:
		out.Kind = "tr"
	case *east.TableCell:
		out.Kind = "td"
	default:
		out.Kind = "span"
	}
	return out
}

func (r *renderer) lines(n ast.Node) string {
	var b strings.Builder
	for i := range n.Lines().Len() {
		at := n.Lines().At(i)
		b.Write(at.Value(r.src))
	}
	return b.String()
}

// plain returns the characters that a text stands for.
func (r *renderer) plain(b []byte, raw bool) string {
	if raw {
		return string(b)
	}
	return string(util.ResolveEntityNames(util.ResolveNumericReferences(util.UnescapePunctuations(b))))
}

// target returns the address that a link leads to, or "" if it is not one of http or https.
func target(dest []byte) string {
	u, err := url.Parse(string(util.URLEscape(dest, true)))
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return ""
	}
	return u.String()
}
