package envd

import (
	"testing"

	"turnstone.dev/turnstone/wire"
)

// TestEndOf: the words of an end are those of E2B's daemon, so of Go's os/exec.
func TestEndOf(t *testing.T) {
	for _, tt := range []struct {
		exit   wire.ProcessExit
		code   int32
		exited bool
		status string
	}{
		{wire.ProcessExit{}, 0, true, "exit status 0"},
		{wire.ProcessExit{ExitCode: 7}, 7, true, "exit status 7"},
		{wire.ProcessExit{ExitCode: 137}, 137, true, "exit status 137"}, // of a shell whose command was killed
		{wire.ProcessExit{ExitCode: 137, OOMKilled: true}, 137, true, "exit status 137"},
		{wire.ProcessExit{ExitCode: 137, Signal: "SIGKILL", Killed: true}, -1, false, "signal: killed"},
		{wire.ProcessExit{ExitCode: 137, Signal: "SIGKILL", OOMKilled: true}, -1, false, "signal: killed"},
		{wire.ProcessExit{ExitCode: 143, Signal: "SIGTERM"}, -1, false, "signal: terminated"},
		{wire.ProcessExit{ExitCode: 130, Signal: "SIGINT"}, -1, false, "signal: interrupt"},
		{wire.ProcessExit{ExitCode: 139, Signal: "SIGSEGV"}, -1, false, "signal: segmentation fault"},
		{wire.ProcessExit{ExitCode: 139, Signal: "SIGSEGV", CoreDumped: true}, -1, false,
			"signal: segmentation fault (core dumped)"},
		{wire.ProcessExit{ExitCode: 134, Signal: "SIGABRT"}, -1, false, "signal: aborted"},
		{wire.ProcessExit{ExitCode: 162, Signal: "SIG34"}, -1, false, "signal: signal 34"},
		{wire.ProcessExit{ExitCode: -1 << 40, Signal: "SIGKILL"}, -1, false, "signal: signal -1099511627904"},
	} {
		e := endOf(tt.exit).GetEnd()
		want := tt.status
		if tt.exit.ExitCode == 0 {
			want = "" // an end without an error has none
		}
		if e.ExitCode != tt.code || e.Exited != tt.exited || e.Status != tt.status || e.GetError() != want ||
			(e.Error != nil) != (want != "") {
			t.Errorf("%+v: %v", tt.exit, e)
		}
	}
}
