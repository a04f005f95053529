package document

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/yuin/goldmark/ast"
	"go.yaml.in/yaml/v3"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/lazyregexp"
)

// Claims are what a receipt says about its turn, as far as a second run can repeat it.
type Claims struct {
	// Info has the values that say what ran and what came out: ID, Template, Image, Substrate,
	// Result, Session, Number, Branch, Parents, Start, FSHash, Secrets, Home, Resumed,
	// Determinism.
	Info  TurnInfo
	Steps []StepClaim // of the document's steps, in their order
}

// A StepClaim is the result of a step as its receipt shows it.
type StepClaim struct {
	Source   turnstone.Digest // of the script that ran; empty: the receipt has no result
	Status   turnstone.Status
	ExitCode *int
	Stdout   OutputClaim
	Stderr   OutputClaim
}

// An OutputClaim is an output as a receipt shows it.
type OutputClaim struct {
	Text   string           // as Output.Text returns it, without a last line feed
	Size   string           // such as "binary, 12 bytes"; empty: Text is the whole output
	Digest turnstone.Digest // of the whole output; empty: the receipt does not have it
}

// Same reports whether two receipts show the same output. Digests are compared if both have one.
func (o OutputClaim) Same(other OutputClaim) bool {
	return o.Text == other.Text && o.Size == other.Size &&
		(o.Digest == other.Digest || o.Digest == "" || other.Digest == "")
}

// ReadReceipt parses a receipt and returns its document and what it claims. A document that was
// never run is an error of kind Invalid.
func ReadReceipt(name string, src []byte) (*Document, *Claims, error) {
	c := &claimReader{}
	d, err := parse(name, src, c)
	if err != nil {
		return nil, nil, err
	}
	invalid := func(hint, format string, args ...any) (*Document, *Claims, error) {
		return nil, nil, turnstone.Errorf("document.receipt", turnstone.KindInvalid, name, format,
			args...).WithHint(hint)
	}
	if c.turn == nil {
		return invalid("write one with turn run -o", "is no receipt: its front matter has no key turn")
	}
	for len(c.claims.Steps) < len(d.Steps) {
		c.claims.Steps = append(c.claims.Steps, StepClaim{})
	}
	if err := c.readInfo(); err != nil {
		return invalid("restore the receipt as turn wrote it",
			"the turn: entry in its front matter: %w", err)
	}
	return d, &c.claims, nil
}

// A claimReader collects the claims of a receipt while it is parsed; nil: it collects nothing.
type claimReader struct {
	turn   *yaml.Node // the value of the key turn
	claims Claims
}

// readInfo reads the entries that matter to a second run.
func (c *claimReader) readInfo() error {
	if c.turn.Kind != yaml.MappingNode {
		return fmt.Errorf("is no map")
	}
	i := &c.claims.Info
	text := map[string]*string{"id": (*string)(&i.ID), "template": (*string)(&i.Template),
		"image": &i.Image, "substrate": &i.Substrate, "result": (*string)(&i.Result),
		"session": &i.Session, "branch": &i.Branch, "start": &i.Start, "fs": (*string)(&i.FSHash),
		"home": &i.Home, "resumed": &i.Resumed}
	seen := map[string]bool{}
	for at := 0; at+1 < len(c.turn.Content); at += 2 {
		key, value := c.turn.Content[at].Value, c.turn.Content[at+1]
		if value.Kind != yaml.ScalarNode {
			return fmt.Errorf("%s has no scalar value", oneLine(key, maxName))
		}
		if seen[key] && key != "merged" {
			return fmt.Errorf("%s is given twice", oneLine(key, maxName))
		}
		seen[key] = true
		switch to := text[key]; {
		case to != nil:
			*to = oneLine(value.Value, maxNote)
		case key == "parent" || key == "merged":
			i.Parents = append(i.Parents, turnstone.TurnID(oneLine(value.Value, maxName)))
		case key == "secrets":
			i.Secrets = strings.Split(value.Value, ", ")
		case key == deterministicKey:
			d, err := turnstone.ParseDeterminism(value.Value)
			if err != nil {
				return fmt.Errorf("%s: %w", key, err)
			}
			i.Determinism = &d
		case key == "number":
			i.Number, _ = strconv.Atoi(value.Value)
		}
	}
	if i.Result == "" {
		return fmt.Errorf("it has no result")
	}
	if _, err := turnstone.ParseDigest(string(i.FSHash)); err != nil && i.FSHash != "" {
		return fmt.Errorf("fs: %w", err)
	}
	return nil
}

var sourceAttr = lazyregexp.New(` source=(sha256:[0-9a-f]{64})( |$)`)

// result collects the result between two markers, of the newest step.
func (c *claimReader) result(p *docParser, begin, end ast.Node, at int) {
	if c == nil {
		return
	}
	var s StepClaim
	if m := sourceAttr.FindSubmatch(p.src[at:lineEnd(p.src, at)]); m != nil {
		s.Source = turnstone.Digest(m[1])
	}
	var shows *OutputClaim // the output of the next fence
	for n := begin.NextSibling(); n != end && n != nil; n = n.NextSibling() {
		text := p.textOf(n)
		if n.Kind() == ast.KindFencedCodeBlock {
			if shows != nil {
				shows.Text = text
			}
			shows = nil
			continue
		}
		for line := range strings.SplitSeq(text, "\n") {
			line, shows = strings.TrimSuffix(strings.TrimRight(line, " "), `\`), nil
			if s.Status == "" {
				s.readStatus(line)
				continue
			}
			name, rest, _ := strings.Cut(line, " · ")
			switch name {
			case "stdout":
				shows = &s.Stdout
			case "stderr":
				shows = &s.Stderr
			default:
				continue
			}
			shows.readLabel(rest)
		}
	}
	for len(c.claims.Steps) < len(p.doc.Steps)-1 {
		c.claims.Steps = append(c.claims.Steps, StepClaim{})
	}
	c.claims.Steps = append(c.claims.Steps, s)
}

// readStatus reads the first line of a result.
func (s *StepClaim) readStatus(line string) {
	parts := strings.Split(line, " · ")
	s.Status = turnstone.Status(strings.Trim(parts[0], "*"))
	if len(parts) > 1 {
		if code, is := strings.CutPrefix(parts[1], "exit "); is {
			if n, err := strconv.Atoi(code); err == nil {
				s.ExitCode = &n
			}
		}
	}
}

// readLabel reads the line above an output. A note and the name of a file are of the first run only.
func (o *OutputClaim) readLabel(rest string) {
	for part := range strings.SplitSeq(rest, " · ") {
		if d, err := turnstone.ParseDigest(part); err == nil {
			o.Digest = d
		} else if strings.HasPrefix(part, "binary, ") || strings.HasSuffix(part, ", cut") ||
			strings.HasSuffix(part, ", nothing to see") {
			o.Size = part
		}
	}
}

// textOf returns the lines of a block without the prefixes of its containers, and without the last
// line feed.
func (p *docParser) textOf(n ast.Node) string {
	var b strings.Builder
	for i := range n.Lines().Len() {
		seg := n.Lines().At(i)
		line := seg.Value(p.src[p.base:])
		line = line[:len(line)-len(eolBefore(line, len(line)))]
		b.Write(line)
		b.WriteByte('\n')
	}
	return strings.TrimSuffix(b.String(), "\n")
}
