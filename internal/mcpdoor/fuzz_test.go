package mcpdoor

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"
)

// FuzzURI: an address is parsed to a path that begins in the state, and to a reference without
// characters that no name has.
func FuzzURI(f *testing.F) {
	for _, s := range []string{"turn://receipts/t_1", "turn://files/s@1/a/../b", "turn://outputs/1",
		"turn://files/%2e%2e/%00", "file:///etc/passwd", "turn://files//", "turn://files/a/%2f%2f"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, uri string) {
		a, err := parseURI(uri)
		if err != nil {
			return
		}
		if strings.ContainsRune(a.path, 0) {
			t.Errorf("%q has a path with a zero byte", uri)
		}
		if scheme+a.kind == filesURI && (!strings.HasPrefix(a.path, "/") || strings.HasPrefix(a.path, "//")) {
			t.Errorf("%q has the path %q", uri, a.path)
		}
		if ref, err := (target{"s", "main"}).ref("the turn", a.turn); err == nil &&
			(strings.ContainsAny(ref, "\x00\n ") || len(ref) > maxRef+1+maxRef) {
			t.Errorf("%q has the reference %q", uri, ref)
		}
	})
}

// FuzzCall: arguments of calls are decoded without a panic, and a cut text is text.
func FuzzCall(f *testing.F) {
	f.Add([]byte(`{"command":"x","timeout":1}`), 10)
	f.Add([]byte(`{"path":"x","base64":"AA=="}`), 3)
	f.Add([]byte("\xff\xfeaäöü€"), 4)
	f.Fuzz(func(t *testing.T, b []byte, max int) {
		var e execIn
		if decode(b, &e) == nil {
			if _, timeout, err := e.command(); err == nil && (timeout < 0 || timeout > maxTimeout) {
				t.Errorf("%q has the time %s", b, timeout)
			}
		}
		for _, in := range inputs() {
			if err := decode(b, in); err != nil && (strings.Contains(err.Error(), "Go ") && !bytes.Contains(b, []byte("Go "))) {
				t.Errorf("%q: %v", b, err)
			}
		}
		if max < 0 || max > 1<<20 {
			return
		}
		if s := cut(string(b), max); !utf8.ValidString(s) || len(s) > max+60 {
			t.Errorf("%d bytes of %q are %q", max, b, s)
		}
		if w := wholeRunes(b); utf8.Valid(b) && !utf8.Valid(w) || len(b)-len(w) >= utf8.UTFMax {
			t.Errorf("of %q are %q", b, w)
		}
	})
}
