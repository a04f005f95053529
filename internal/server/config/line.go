package config

import (
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"
)

// line returns the line on which the file sets a key, or 0. The TOML library does not keep places,
// so line decodes the file's beginnings: the key is set in the first one that has it. Its first
// line comes after the last beginning without the key, which matters for a list of several lines.
func (l *loader) line(key []string) int {
	if !has(l.tree, key) {
		return 0
	}
	lines := strings.SplitAfter(l.text, "\n")
	before, size := 0, 0
	for n := range lines {
		size += len(lines[n])
		var tree map[string]any
		if _, err := toml.Decode(l.text[:size], &tree); err != nil {
			continue // in the middle of a value
		}
		if !has(tree, key) {
			before = n + 1
			continue
		}
		return before + 1
	}
	return 0
}

// has reports whether a decoded tree has a key. Numbers in a key count the tables of a list from 1.
func has(v any, key []string) bool {
	if len(key) == 0 {
		return true
	}
	switch v := v.(type) {
	case map[string]any:
		// A name of the file may have a dot in it.
		for n := len(key); n > 0; n-- {
			if sub, ok := v[strings.Join(key[:n], ".")]; ok && has(sub, key[n:]) {
				return true
			}
		}
	case []map[string]any:
		i, err := strconv.Atoi(key[0])
		return err == nil && i >= 1 && i <= len(v) && has(v[i-1], key[1:])
	case []any:
		i, err := strconv.Atoi(key[0])
		return err == nil && i >= 1 && i <= len(v) && has(v[i-1], key[1:])
	}
	return false
}
