package turn_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/plan"
)

// strictly returns a world whose turns are of the tier strict.
func strictly(t *testing.T) *world {
	w := newWorld(t)
	w.driver.Strict = true
	return w
}

// told returns what a report says of each step, without durations.
func told(rep *turnstone.TurnReport) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %q\n", rep.Result, rep.Error)
	for _, s := range rep.Steps {
		code := "-"
		if s.ExitCode != nil {
			code = fmt.Sprint(*s.ExitCode)
		}
		fmt.Fprintf(&b, "%s %s %s %q %q %q\n", s.Name, s.Status, code, s.Note, s.Stdout,
			s.Stderr)
	}
	return b.String()
}

// TestStrictPaths runs the same turns with and without a script: they differ in nothing.
func TestStrictPaths(t *testing.T) {
	for name, text := range map[string]string{
		"passes": step("name=a", "cd /; A=1; export A; echo one") +
			step("name=b", "pwd; echo $A; echo err >&2"),
		"a failed step ends it": step("name=a", "echo one; false") + step("name=b", "echo two"),
		"goes on after a failure": step("name=a continue-on-error=true", "exit 3") +
			step("name=b", "echo two"),
		"is skipped":  step("name=a skip=true", "echo one") + step("name=b", "echo two"),
		"cannot end":  step("name=a timeout=200ms", "echo one; sleep 100") + step("name=b", "echo 2"),
		"in sh":       step("name=a", "set -u; echo $NONE") + step("name=b", "echo no"),
		"leaves jobs": step("name=a", "sleep 100 & echo $?; disown"),
		"much output": step("name=a", "head -c 10000000 /dev/zero | tr '\\0' x; seq 200000 >&2"),
		"a killed shell": step("name=a continue-on-error=true", "kill -9 $$") +
			step("name=b", "echo $0"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			without, with, same := bothPaths(t, text)
			if longer := strings.Replace(text, "timeout=200ms", "timeout=20s", 1); !same && longer != text {
				// A busy machine may not begin a step in the short time, and the steps differ by that.
				without, with, same = bothPaths(t, longer)
			}
			if !same {
				t.Errorf("with a script:\n%.3000s\nwithout:\n%.3000s", told(with), told(without))
			}
			if with.Determinism == nil || with.Determinism.Tier != turnstone.TierStrict ||
				with.FSHash != without.FSHash {
				t.Errorf("%+v, %s and %s", with.Determinism, with.FSHash, without.FSHash)
			}
		})
	}
}

// bothPaths runs a turn without and with a script, and reports whether the steps are the same.
func bothPaths(t *testing.T, text string) (without, with *turnstone.TurnReport, same bool) {
	t.Helper()
	plain, w, on := newWorld(t), strictly(t), true
	without = plain.run(t.Context(), plan.Request{}, text, nil)
	with = w.run(t.Context(), plan.Request{Substrate: "qemu", Deterministic: &on}, text, nil)
	return without, with, strings.ReplaceAll(told(without), plain.driver.Dir, "DIR") ==
		strings.ReplaceAll(told(with), w.driver.Dir, "DIR")
}

// TestStrictSession checks that files, environment and directory of a turn reach the next one, that
// files are added and fetched, and that a replay gets the same inputs.
func TestStrictSession(t *testing.T) {
	w := strictly(t)
	on := true
	host := t.TempDir()
	from := filepath.Join(host, "data")
	if err := os.WriteFile(from, []byte(strings.Repeat("data\n", 1<<20)), 0o600); err != nil {
		t.Fatal(err)
	}
	req := plan.Request{Session: "s", Substrate: "qemu", Deterministic: &on}
	w.adds = []document.Transfer{{Path: from, Dest: filepath.Join(w.driver.Root(), "in")}}
	first := w.run(t.Context(), req, step("name=a", "cd "+w.driver.Root()+
		"; wc -l <in; echo kept >f; export B='two words'; mkdir d; cd d"), nil)
	w.adds = nil
	req.Get = []document.Transfer{{Path: filepath.Join(w.driver.Root(), "f"),
		Dest: filepath.Join(host, "got")}}
	second := w.run(t.Context(), req, step("name=b", "echo \"$B\"; basename $PWD; cat ../f"), nil)
	for _, rep := range []*turnstone.TurnReport{first, second} {
		if rep.Result != turnstone.ResultPassed || rep.State == "" {
			t.Fatalf("%s", told(rep))
		}
	}
	if got := first.Steps[0].Stdout; got != "1048576\n" {
		t.Errorf("the file has %q lines", got)
	}
	if got := second.Steps[0].Stdout; got != "two words\nd\nkept\n" {
		t.Errorf("the second turn printed %q", got)
	}
	if b, err := os.ReadFile(filepath.Join(host, "got")); string(b) != "kept\n" {
		t.Errorf("%q, %v", b, err)
	}
}

// TestStrictTimeUp checks that a turn whose script does not end in time is timed out.
func TestStrictTimeUp(t *testing.T) {
	w := strictly(t)
	on := true
	rep := w.run(t.Context(), plan.Request{Substrate: "qemu", Deterministic: &on,
		Timeout: time.Second}, step("name=a", "sleep 100"), nil)
	if rep.Result != turnstone.ResultTimedOut || rep.State != "" {
		t.Errorf("%s", told(rep))
	}
}

// TestOtherTier: a deterministic turn that names no tier gets the tier strict on a host without
// gVisor, and hears why. What only the tier seeded allows is rejected before the turn begins.
func TestOtherTier(t *testing.T) {
	w := strictly(t)
	l := &listener{}
	rep := w.run(t.Context(), plan.Request{}, "---\ndeterministic: true\n---\n"+
		step("name=a", "echo one"), l)
	if rep.Determinism == nil || rep.Determinism.Tier != turnstone.TierStrict ||
		rep.Substrate != "qemu" || rep.Result != turnstone.ResultPassed {
		t.Errorf("%+v, %s", rep.Determinism, told(rep))
	}
	if said := strings.Join(l.events, "\n"); !strings.Contains(said,
		"tier strict, because the tier seeded is not available: ") {
		t.Errorf("said %q", said)
	}
	for front, want := range map[string]string{
		"network: replay\n": "the tier seeded allows this request and is not available here: ",
		"cpus: 2\n":         "cpus: a deterministic turn has one CPU",
		"tier: seeded\n":    "",
	} {
		doc := ok[*document.Document](t)(document.Parse("test.md", []byte(
			"---\ndeterministic: true\n"+front+"---\n"+step("name=a", "echo one"))))
		rep, err := w.Run(t.Context(), plan.Request{Document: doc, Image: image}, nil)
		if want == "" { // the turn begins, and no substrate has its tier
			if err != nil || rep.Result != turnstone.ResultError {
				t.Errorf("%s: %+v, %v", front, rep, err)
			}
		} else if err == nil || rep != nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v, %v", front, rep, err)
		}
	}
}
