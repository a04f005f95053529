package document

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"turnstone.dev/turnstone/internal/lazyregexp"
)

// maxRules bounds the number of network rules in a list.
const maxRules = 500

// networkHint describes the values of network:.
const networkHint = "write network: on, off, record or replay, or a map with allow, deny, " +
	"record, replay, intercept and host_ca"

// ruleForm matches the syntax of a network rule and turnRef the syntax of a turn's reference. Other
// packages interpret both.
var (
	ruleForm = lazyregexp.New(`^[A-Za-z0-9*._:/\[\]-]{1,300}$`)
	turnRef  = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9._@/-]{0,199}$`)
)

// readNetwork reads a word, or a map of rules.
func (p *docParser) readNetwork(n *yaml.Node) {
	if n.Kind == yaml.MappingNode {
		p.networkMap(n)
		return
	}
	if n.Kind == yaml.SequenceNode {
		p.errorNode(n, "network: a list does not say whether its names are allowed or denied",
			"write network: {allow: […]}, or deny")
		return
	}
	s, ok := p.scalar(n, "network", networkHint)
	if !ok {
		return
	}
	on, rules, ok := NetworkMode(s)
	if !ok {
		p.errorNode(n, fmt.Sprintf("network: %q is not on, off, record or replay",
			oneLine(s, maxName)), networkHint)
		return
	}
	p.doc.Front.Network, p.doc.Front.NetworkRules = &on, rules
}

// NetworkMode reads the one-word values of network: on, off, record and replay.
func NetworkMode(word string) (on bool, rules *NetworkRules, ok bool) {
	switch strings.ToLower(word) {
	case "on", "true", "yes":
		return true, nil, true
	case "off", "false", "no":
		return false, nil, true
	case "record":
		return true, &NetworkRules{Record: true}, true
	case "replay":
		return true, &NetworkRules{Replay: true}, true
	}
	return false, nil, false
}

// networkKeys are the keys of the network: map.
var networkKeys = []string{"allow", "deny", "record", "replay", "intercept", "host_ca"}

func (p *docParser) networkMap(n *yaml.Node) {
	on, r := true, &NetworkRules{}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind != yaml.ScalarNode || !slices.Contains(networkKeys, key.Value) {
			p.errorNode(key, fmt.Sprintf("network: unknown key %q; the nearest known one is %q",
				oneLine(key.Value, maxName), nearest(key.Value, networkKeys)), networkHint)
			continue
		}
		if seen[key.Value] {
			p.errorNode(key, fmt.Sprintf("network: key %q is given twice", key.Value),
				"remove one of them")
			continue
		}
		seen[key.Value] = true
		switch key.Value {
		case "allow":
			r.Allow, r.HasAllow = p.networkRules(value, "allow"), true
		case "deny":
			r.Deny = p.networkRules(value, "deny")
		case "record":
			r.Record = p.yesNo(value, "network: record")
		case "intercept":
			r.Intercept = p.yesNo(value, "network: intercept")
		case "host_ca":
			r.NoHostCA = !p.yesNo(value, "network: host_ca")
		case "replay":
			p.networkReplay(value, r)
		}
	}
	if r.Record && r.Replay {
		p.errorNode(n, "network: a turn cannot both record and replay", "remove record or replay")
	}
	p.doc.Front.Network, p.doc.Front.NetworkRules = &on, r
}

// networkReplay reads whether the network is replayed, and of which turn.
func (p *docParser) networkReplay(n *yaml.Node, r *NetworkRules) {
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!bool" {
		r.Replay = p.yesNo(n, "network: replay")
		return
	}
	const hint = "write replay: true, or the turn with the recording, such as t_… or SESSION@N"
	s, ok := p.scalar(n, "network: replay", hint)
	if ok && !turnRef.MatchString(s) {
		p.errorNode(n, fmt.Sprintf("network: replay: %q is not a turn", oneLine(s, maxName)), hint)
		return
	}
	if ok {
		r.Replay, r.ReplayOf = true, s
	}
}

// networkRules reads a list of rules or a single rule.
func (p *docParser) networkRules(n *yaml.Node, key string) []string {
	const hint = `write a list such as ["api.example.com", "*.example.org:443", "10.0.0.0/8"]; ` +
		"public matches all public addresses"
	nodes := n.Content
	if n.Kind == yaml.ScalarNode {
		nodes = []*yaml.Node{n}
	} else if n.Kind != yaml.SequenceNode {
		p.errorNode(n, "network: "+key+" is not a list", hint)
		return nil
	}
	if len(nodes) > maxRules {
		p.errorNode(n, fmt.Sprintf("network: %s has more than %d rules", key, maxRules),
			"use a wider range, or the names' common suffix, such as *.example.org")
		return nil
	}
	var rules []string
	for _, c := range nodes {
		s, ok := p.scalar(c, "network: "+key, hint)
		if ok && !ruleForm.MatchString(s) {
			p.errorNode(c, fmt.Sprintf("network: %s: %q is not a name, address or range", key,
				oneLine(s, maxName)), hint)
			continue
		}
		if ok {
			rules = append(rules, s)
		}
	}
	return rules
}

func (p *docParser) yesNo(n *yaml.Node, key string) bool {
	s, ok := p.scalar(n, key, "write "+key+": true or false")
	if !ok {
		return false
	}
	switch strings.ToLower(s) {
	case "true", "yes", "on":
		return true
	case "false", "no", "off":
		return false
	}
	p.errorNode(n, fmt.Sprintf("%s: %q is neither true nor false", key, oneLine(s, maxName)),
		"write true or false")
	return false
}
