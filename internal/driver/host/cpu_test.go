package host

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestModel checks that a machine resumes on a CPU of the same name that has all of its features,
// and that otherwise the missing features are named.
func TestModel(t *testing.T) {
	now := &Model{Name: "Xeon", Features: []string{"avx", "fpu", "sse"}}
	for want, was := range map[string]*Model{
		"":                     {Name: "Xeon", Features: []string{"avx", "sse"}},
		"CPU (EPYC, now Xeon)": {Name: "EPYC", Features: now.Features},
		"CPU (Xeon with avx512f, now without)": {Name: "Xeon",
			Features: []string{"avx", "avx512f"}},
		"CPU (now Xeon)":        nil,
		"CPU (?[31m, now Xeon)": {Name: "\x1b[31m"},
	} {
		if got := was.lacks(now); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if m, err := CPUModel(); err != nil || m.Differs() != "" || len(m.Features) == 0 {
		t.Errorf("%+v, %v", m, err)
	}
	rapid.Check(t, func(r *rapid.T) {
		m := &Model{Name: rapid.String().Draw(r, "name"),
			Features: rapid.SliceOf(rapid.String()).Draw(r, "features")}
		got := m.lacks(now)
		if len(got) > 400 || strings.ContainsFunc(got,
			func(c rune) bool { return c < 0x20 || c > 0x7e && c != '…' }) {
			r.Fatalf("%q", got)
		}
	})
}

func TestSeries(t *testing.T) {
	for release, want := range map[string]string{"6.1.0-25-amd64": "6.1", "6.1.99": "6.1",
		"6.10.1": "6.10", "6": "6", "": ""} {
		if got := Series(release); got != want {
			t.Errorf("%q of %q", got, release)
		}
	}
}
