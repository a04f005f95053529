package auth

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"
)

// maxDepth bounds the nesting of untrusted JSON.
const maxDepth = 8

// object decodes a JSON object whose names are unique at every level (RFC 8725, 2.4): a verifier
// and a later reader that choose different ones of two equal names would read different claims.
// Names are compared as written, so "ISS" is not "iss".
func object(b []byte) (map[string]json.RawMessage, error) {
	if !utf8.Valid(b) {
		return nil, errors.New("is not UTF-8")
	}
	if err := unique(b); err != nil {
		return nil, err
	}
	var m map[string]json.RawMessage
	if err := json.Unmarshal(b, &m); err != nil || m == nil {
		return nil, errors.New("is not a JSON object") // the decoder's errors quote the input
	}
	return m, nil
}

// unique walks over one JSON value and reports a name that an object has twice, a depth beyond
// maxDepth, or anything after the value.
func unique(b []byte) error {
	bad := errors.New("is not JSON")
	if !json.Valid(b) {
		return bad
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	type level struct {
		names map[string]bool // nil: an array
		key   bool            // the next token is a name
	}
	var open []level
	for {
		t, err := d.Token()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return bad
		}
		top := len(open) - 1
		if name, ok := t.(string); ok && top >= 0 && open[top].key {
			if open[top].names[name] {
				return errors.New("has a name twice")
			}
			open[top].names[name], open[top].key = true, false
			continue
		}
		switch t {
		case json.Delim('{'):
			open = append(open, level{map[string]bool{}, true})
		case json.Delim('['):
			open = append(open, level{})
		case json.Delim('}'), json.Delim(']'):
			open = open[:top]
		}
		if len(open) > maxDepth {
			return fmt.Errorf("is nested deeper than %d", maxDepth)
		}
		// A value ended, or an array or object opened: the next token of an object is a name.
		if n := len(open) - 1; n >= 0 && open[n].names != nil {
			open[n].key = true
		}
	}
}

// text decodes a JSON string of 1 to limit bytes without control characters.
func text(raw json.RawMessage, limit int) (string, error) {
	var s *string
	if err := json.Unmarshal(raw, &s); err != nil || s == nil {
		return "", errors.New("is not a string")
	}
	if *s == "" || len(*s) > limit {
		return "", fmt.Errorf("has %d bytes; 1 to %d are allowed", len(*s), limit)
	}
	for _, r := range *s {
		if r < ' ' || r == 0x7f || r == utf8.RuneError {
			return "", errors.New("has characters that are not allowed")
		}
	}
	return *s, nil
}

// texts decodes a JSON array of at most count strings.
func texts(raw json.RawMessage, count, limit int) ([]string, error) {
	var list []json.RawMessage
	if err := json.Unmarshal(raw, &list); err != nil || list == nil {
		return nil, errors.New("is not an array of strings")
	}
	if len(list) > count {
		return nil, fmt.Errorf("has %d elements; the limit is %d", len(list), count)
	}
	all := make([]string, 0, len(list))
	for _, one := range list {
		s, err := text(one, limit)
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}
