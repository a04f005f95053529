package document

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"turnstone.dev/turnstone"
)

// deterministicKey is a key of the front matter, and of a receipt's turn: map.
const deterministicKey = "deterministic"

func (p *docParser) readDeterministic(n *yaml.Node) {
	const hint = "write deterministic: true or deterministic: false"
	s, ok := p.scalar(n, deterministicKey, hint)
	switch {
	case !ok:
	case s == "true" || s == "false":
		p.doc.Front.Deterministic = s == "true"
	default:
		p.errorNode(n, fmt.Sprintf("%s: %q is neither true nor false", deterministicKey,
			oneLine(s, maxName)), hint)
	}
}

func (p *docParser) readSeed(n *yaml.Node) {
	hint := fmt.Sprintf("write a whole number from 0 to %d", uint64(turnstone.MaxSeed))
	s, ok := p.scalar(n, "seed", hint)
	if !ok {
		return
	}
	seed, err := turnstone.ParseSeed(s)
	if err != nil {
		p.errorNode(n, "seed: "+oneLine(err.Error(), maxNote), hint)
		return
	}
	p.doc.Front.Seed = &seed
}

func (p *docParser) readClock(n *yaml.Node) {
	const hint = "write a time from 1970 to 2100, such as 2026-01-01T00:00:00Z, or a date"
	s, ok := p.scalar(n, "clock", hint)
	if !ok {
		return
	}
	t, err := turnstone.ParseClock(s)
	if err != nil {
		p.errorNode(n, "clock: "+oneLine(err.Error(), maxNote), hint)
		return
	}
	p.doc.Front.Clock = t
}

// onlyDeterministic reports keys of deterministic turns in a document that is not deterministic.
func (p *docParser) onlyDeterministic(m *yaml.Node) {
	if p.doc.Front.Deterministic {
		return
	}
	of := []string{"tier", "seed", "clock"}
	for i := 0; i+1 < len(m.Content); i += 2 {
		key := m.Content[i]
		if key.Value == deterministicKey && !slices.Contains([]string{"true", "false"},
			m.Content[i+1].Value) {
			return // its own error says it
		}
		if at := slices.Index(of, key.Value); at >= 0 {
			p.errorNode(key, key.Value+" is only for deterministic turns",
				"add deterministic: true, or remove "+strings.TrimSpace(key.Value))
			of = slices.Delete(of, at, at+1)
		}
	}
}
