package agent

import (
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/wire"
)

// TestPrepare: a prepared program is the next process if that is what is asked for, and another
// process runs as if nothing was prepared. A step does too.
func TestPrepare(t *testing.T) {
	h := newHarness(t)
	prepare := func(program string) error {
		return h.ProcessPrepare(t.Context(), &wire.ProcessPrepareParams{Program: program})
	}
	for _, argv := range [][]string{{"bash", "-c", "cat; echo $HOME"}, {"sh", "-c", "cat; echo $HOME"}} {
		if err := prepare("bash"); err != nil {
			t.Fatal(err)
		}
		res, err := h.start(strings.NewReader("in\n"), argv...)
		if err != nil || res.ExitCode != 0 || res.stdout != "in\n/root\n" || res.stderr != "" {
			t.Errorf("%v: %+v %v", argv, res, err)
		}
	}
	kindIs(t, prepare("no-such-program"), turnstone.KindNotFound)
	kindIs(t, prepare("/bin/bash"), turnstone.KindInvalid)
	if err := prepare("bash"); err != nil { // the agent's end ends it
		t.Fatal(err)
	}
}
