package record

import (
	"encoding/json"
	"strings"
	"testing"

	"turnstone.dev/turnstone/wire"
)

// TestBound checks that huge commands are cut, and their secrets are not.
func TestBound(t *testing.T) {
	long := strings.Repeat("x", maxScript+1)
	for _, e := range []*wire.SandboxCommandStartedEvent{
		{Script: long}, {Argv: []string{"a", long, "b"}}, {Argv: strings.Split(long, "")},
	} {
		bound(e)
		b, err := json.Marshal(e)
		if !e.Cut || err != nil || len(b) > 4*maxScript {
			t.Errorf("%t, %d bytes: %v", e.Cut, len(b), err)
		}
	}
	e := &wire.SandboxCommandStartedEvent{Env: []string{"KEY=" + long}, Argv: []string{"x"}}
	if bound(e); e.Cut || len(e.Env[0]) != len(long)+4 {
		t.Error("a variable was cut")
	}
}
