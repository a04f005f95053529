package plain

import "testing"

// FuzzExec: what is decoded is a command that a process can have.
func FuzzExec(f *testing.F) {
	for _, s := range []string{`{"command":["true"]}`, `{"script":"x","timeout":1e9}`,
		`{"env":{"A":"b"},"script":"\u0000"}`, `{"timeout":-0.0,"command":[""]}`, `[]`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		q, timeout, err := parseExec(b)
		if err == nil && (len(q.Command) == 0 || timeout <= 0 || timeout > maxTimeout) {
			t.Errorf("%+v %s", q, timeout)
		}
	})
}
