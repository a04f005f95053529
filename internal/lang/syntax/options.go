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

// An option is a rule's description of an option: its kind, and the number of words that follow it.
type option struct {
	kind  optionKind
	words int
}

// optionTable contains a rule's options by their names, including dashes.
type optionTable map[string]option

// A compiledRule is a rule with split lists.
type compiledRule struct {
	languageRule
	options optionTable
}

// A ruleBook contains the rules by the programs' names.
type ruleBook struct {
	exact map[string]*compiledRule
	stems []stemRule // of programs with versions in their names
}

type stemRule struct {
	stem string
	rule *compiledRule
}

// theRules returns the compiled rules, which are built on first use.
var theRules = sync.OnceValue(func() *ruleBook {
	book := &ruleBook{exact: map[string]*compiledRule{}}
	for _, r := range languageRules() {
		c := &compiledRule{languageRule: r, options: optionTable{}}
		c.options.put(r.Values, valueOption)
		c.options.put(r.Code, codeOption)
		c.options.put(r.Instead, insteadOption)
		c.options.put(r.Force, forceOption)
		for _, name := range strings.Fields(r.Programs) {
			stem, versions := strings.CutSuffix(name, "*")
			if versions {
				book.stems = append(book.stems, stemRule{stem, c})
			}
			if book.exact[stem] == nil {
				book.exact[stem] = c
			}
		}
	}
	return book
})

// find returns the rule of a program's name, or nil.
func (b *ruleBook) find(name string) *compiledRule {
	if r := b.exact[name]; r != nil {
		return r
	}
	if name == "" || len(name) > 64 || !strings.ContainsAny(name[len(name)-1:], "0123456789") {
		return nil
	}
	for _, s := range b.stems {
		if strings.HasPrefix(name, s.stem) &&
			strings.Trim(name[len(s.stem):], "0123456789.") == "" {
			return s.rule
		}
	}
	return nil
}

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

// read returns the option in a word, and the offset of its value in the word: at the word's end if
// the value is the next word. A cluster of short options ("-ne") counts as its first option with a
// value.
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
