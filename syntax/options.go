package syntax

import (
	"strconv"
	"strings"
	"sync"
)

type optionKind int

const (
	flagOption optionKind = iota
	codeOption
	valueOption
	insteadOption
	forceOption
)

// An option is what a rule says of one: its kind, and how many words follow it.
type option struct {
	kind  optionKind
	words int
}

// optionTable has a rule's options by their names, dashes included.
type optionTable map[string]option

// A compiledRule is a rule whose lists are split.
type compiledRule struct {
	rule     *Rule
	programs []string
	options  optionTable
}

// ruleTable returns the rules, ready for use. They are made at the first use.
var ruleTable = sync.OnceValue(func() []compiledRule {
	var out []compiledRule
	for _, r := range Rules() {
		c := compiledRule{rule: &r, programs: strings.Fields(r.Programs), options: optionTable{}}
		c.options.put(r.Values, valueOption)
		c.options.put(r.Code, codeOption)
		c.options.put(r.Instead, insteadOption)
		c.options.put(r.Force, forceOption)
		out = append(out, c)
	}
	return out
})

func (t optionTable) put(list string, kind optionKind) {
	for _, word := range strings.Fields(list) {
		name, count, ok := strings.Cut(word, ":")
		o := option{kind: kind, words: 1}
		if n, err := strconv.Atoi(count); ok && err == nil {
			o.words = n
		}
		t[name] = o
	}
}

func optionsOf(r *Rule) optionTable {
	for _, c := range ruleTable() {
		if c.rule == r {
			return c.options
		}
	}
	return nil
}

// read returns the option that a word is, and where in the word its value begins:
// at its end if the value is the next word. A cluster of short options ("-ne") is
// the first of them that takes a value.
func (t optionTable) read(word string) (o option, value int) {
	if o, ok := t[word]; ok {
		return o, len(word)
	}
	if strings.HasPrefix(word, "--") {
		if name, _, ok := strings.Cut(word, "="); ok {
			return t[name], len(name) + 1
		}
		return option{}, len(word)
	}
	forced := option{}
	for i := 1; i < len(word); i++ {
		o, ok := t[word[:1]+word[i:i+1]]
		if ok && o.kind == forceOption {
			forced = o
		} else if ok {
			return o, i + 1
		}
	}
	return forced, len(word)
}
