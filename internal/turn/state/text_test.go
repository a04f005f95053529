package state

import (
	"slices"
	"strings"
	"testing"
)

// TestText checks that nothing of a session is kept under another value or name.
func TestText(t *testing.T) {
	var told []string
	req := &Request{Tell: func(s string) { told = append(told, s) }}
	env, cwd := req.text([]string{"A=1", "B=\xff\xfe", "C=\u00e9"}, "/w/d\xff/x")
	if !slices.Equal(env, []string{"A=1", "C=\u00e9"}) || cwd != "/w" || len(told) != 2 ||
		!strings.HasSuffix(told[0], ": B") || !strings.HasSuffix(told[1], " /w") {
		t.Errorf("%q %q %q", env, cwd, told)
	}
	told = nil
	if env, cwd := req.text([]string{"A=1"}, "/w"); len(env) != 1 || cwd != "/w" || told != nil {
		t.Errorf("%q %q %q", env, cwd, told)
	}
}
