package cli

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"turnstone.dev/turnstone"
)

// TestCutOffCommandIsReported checks that the output of an interrupted command is printed, with the
// status of turn.
func TestCutOffCommandIsReported(t *testing.T) {
	fault := turnstone.NewError("executor.exec", turnstone.KindTimeout, "sh", nil)
	for _, tc := range []struct {
		code    int
		wrote   string
		printed bool
	}{{ExitTimeout, "partial", true}, {ExitTimeout, "", true}, {ExitExec, "partial", true},
		{ExitExec, "", false}} {
		path := filepath.Join(t.TempDir(), "out")
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		c := NewCapturedCommand([]string{"sh"})
		_, _ = c.Stdout.Write([]byte(tc.wrote))
		verdict := Exit(tc.code, fault)
		if got := c.Deliver(&App{Stdout: f}, 0, fault, verdict); !errors.Is(got, verdict) {
			t.Errorf("%+v: %v", tc, got)
		}
		_ = f.Close()
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var r CommandReport
		if (json.Unmarshal(b, &r) == nil) != tc.printed || tc.printed &&
			(r.Stdout != tc.wrote || r.ExitCode != tc.code) {
			t.Errorf("%+v: %s", tc, b)
		}
	}
}

// TestNobodyListens checks that a reader of standard output that disconnects is not an error.
func TestNobodyListens(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	_ = r.Close()
	said, err := os.Create(filepath.Join(t.TempDir(), "err"))
	if err != nil {
		t.Fatal(err)
	}
	a := &App{Stdout: w, Stderr: said}
	_, err = w.Write([]byte("x"))
	if code := a.report(Exit(ExitAborted, errors.Join(err, nil))); code !=
		128+int(syscall.SIGPIPE) {
		t.Errorf("status %d (%v)", code, err)
	}
	if st, err := said.Stat(); err != nil || st.Size() != 0 {
		t.Errorf("something is said: %v", err)
	}
	if code := a.report(&turnstone.Error{Op: "run", Subject: "the receipt was not written",
		Err: err}); code != ExitAborted {
		t.Errorf("a receipt that is lost: status %d", code)
	}
	if st, err := said.Stat(); err != nil || st.Size() == 0 {
		t.Errorf("a receipt that is lost is not said: %v", err)
	}
}
