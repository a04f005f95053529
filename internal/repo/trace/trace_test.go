package trace

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"turnstone.dev/turnstone"
)

func encode(t testing.TB, all turnstone.TraceReport) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := Begin(&b, all.Turn)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all.Steps {
		if err := w.Step(s.TraceStep, s.Ran); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.End(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func decode(b []byte) (turnstone.TraceReport, error) {
	var all turnstone.TraceReport
	err := Read(bytes.NewReader(b), all.Add)
	return all, err
}

// someTrace draws a trace whose texts are those of a guest: any bytes.
func someTrace(t *rapid.T) turnstone.TraceReport {
	text := rapid.Custom(func(t *rapid.T) string {
		return string(rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(t, "bytes"))
	})
	at := rapid.Map(rapid.Int64Range(0, 1e12), func(us int64) turnstone.Millis {
		return turnstone.Millis(us * 1000)
	})
	all := turnstone.TraceReport{Turn: turnstone.TraceHead{ID: "t_1", Image: "base",
		Started: time.UnixMicro(rapid.Int64Range(0, 4e15).Draw(t, "started")).UTC(),
		Result:  turnstone.ResultPassed}}
	for i := range rapid.IntRange(0, 3).Draw(t, "steps") {
		s := turnstone.TraceStepReport{TraceStep: turnstone.TraceStep{Index: i + 1,
			Name: text.Draw(t, "name"), Status: turnstone.StepPassed}}
		for id := range rapid.IntRange(0, 4).Draw(t, "commands") {
			code := rapid.IntRange(0, 255).Draw(t, "exit")
			s.Ran = append(s.Ran, turnstone.CommandReport{ID: id, Parent: -1, Kind: "simple",
				Language: "bash", Text: text.Draw(t, "text"), Start: at.Draw(t, "start"),
				Duration: at.Draw(t, "duration"), ExitCode: &code,
				Stdin: &turnstone.InputInfo{Kind: "heredoc", Text: text.Draw(t, "stdin")}})
		}
		all.Steps = append(all.Steps, s)
	}
	return all
}

// TestRoundTrip: what was written is read again, whatever bytes a guest put into it, and a trace
// has one spelling only: each change of a byte is an error or another trace.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		want := someTrace(rt)
		b := encode(t, want)
		got, err := decode(b)
		if err != nil {
			rt.Fatalf("%v\n%s", err, b)
		}
		if again := encode(t, got); !bytes.Equal(again, b) {
			rt.Fatalf("written\n%sread and written again\n%s", b, again)
		}
		if len(got.Steps) != len(want.Steps) {
			rt.Fatalf("%d steps of %d", len(got.Steps), len(want.Steps))
		}
		i := rapid.IntRange(0, len(b)-1).Draw(rt, "byte")
		bad := bytes.Clone(b)
		bad[i] ^= byte(rapid.IntRange(1, 255).Draw(rt, "bits"))
		if other, err := decode(bad); err == nil && bytes.Equal(encode(t, other), b) {
			rt.Fatalf("byte %d makes no difference:\n%s", i, bad)
		}
		if _, err := decode(b[:i]); turnstone.KindOf(err) != turnstone.KindIntegrity {
			rt.Fatalf("cut at %d: %v", i, err)
		}
	})
}

// TestManyCommands: a turn that ran ten million commands has a trace within the bounds, which says
// how many it leaves out.
func TestManyCommands(t *testing.T) {
	const steps, each = 1000, 10_000
	ran := make([]turnstone.CommandReport, each)
	for i := range ran {
		ran[i] = turnstone.CommandReport{ID: i, Parent: -1, Kind: "simple", Language: "bash",
			Text: "true"}
	}
	refused := make([]turnstone.RefusalReport, 50)
	for i := range refused {
		refused[i] = turnstone.RefusalReport{Target: strings.Repeat("x", 250), Count: 2,
			Reason: strings.Repeat("y", 300), Command: strings.Repeat("z", 4<<10)}
	}
	var size countingWriter
	w, err := Begin(&size, turnstone.TraceHead{ID: "t_1"})
	if err != nil {
		t.Fatal(err)
	}
	for i := range steps {
		s := turnstone.TraceStep{Index: i + 1, Commands: each,
			Network: &turnstone.NetworkReport{Refused: refused}}
		if err := w.Step(s, ran); err != nil {
			t.Fatal(i, err)
		}
	}
	if err := w.End(); err != nil {
		t.Fatal(err)
	}
	if e := w.end; size.n > MaxBytes || e.Commands != MaxCommands ||
		e.Commands+e.LeftOut != steps*each || e.Steps != steps {
		t.Errorf("%d bytes, %+v", size.n, e)
	}
}

// TestLongCommands: the bound in bytes also leaves commands out, and keeps the steps.
func TestLongCommands(t *testing.T) {
	ran := make([]turnstone.CommandReport, 10_000)
	for i := range ran {
		ran[i] = turnstone.CommandReport{ID: i, Text: strings.Repeat("x", 4<<10)}
	}
	all := turnstone.TraceReport{}
	for i := range 3 {
		all.Steps = append(all.Steps, turnstone.TraceStepReport{
			TraceStep: turnstone.TraceStep{Index: i + 1}, Ran: ran})
	}
	b := encode(t, all)
	got, err := decode(b)
	if err != nil || len(got.Steps) != 3 || got.End.LeftOut == 0 ||
		got.End.Commands+got.End.LeftOut != 30_000 || len(got.Steps[2].Ran) != 0 ||
		got.Steps[2].LeftOut != 10_000 {
		t.Errorf("%v, %+v, %d bytes", err, got.End, len(b))
	}
}

// TestDamaged: each trace is not one that turn writes.
func TestDamaged(t *testing.T) {
	code := 0
	good := string(encode(t, turnstone.TraceReport{Turn: turnstone.TraceHead{ID: "t_1"},
		Steps: []turnstone.TraceStepReport{{TraceStep: turnstone.TraceStep{Index: 1, Name: "a"},
			Ran: []turnstone.CommandReport{{ID: 0, Text: "true", ExitCode: &code}}}}}))
	if _, err := decode([]byte(good)); err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(good, "\n")
	for what, text := range map[string]string{
		"empty": "", "cut": good[:len(good)-10], "without its end": strings.Join(lines[:3], ""),
		"without its head": strings.Join(lines[1:], ""), "twice": good + good,
		"CRLF": strings.ReplaceAll(good, "\n", "\r\n"), "blank": "\n" + good,
		"spaced":         strings.Replace(good, `{"turn"`, `{ "turn"`, 1),
		"a second key":   strings.Replace(good, `"name":"a"`, `"name":"b","name":"a"`, 1),
		"an unknown key": strings.Replace(good, `"name":"a"`, `"name":"a","x":1`, 1),
		"another format": strings.Replace(good, `"format":1`, `"format":2`, 1),
		"a lost command": strings.Join([]string{lines[0], lines[1], lines[3]}, ""),
		"a long line":    `{"turn":"` + strings.Repeat("x", maxLine) + `"}`,
		"deep":           strings.Repeat("[", 1<<19) + "\n",
		"a step again":   lines[0] + lines[1] + lines[1] + lines[3],
	} {
		if _, err := decode([]byte(text)); turnstone.KindOf(err) != turnstone.KindIntegrity {
			t.Errorf("%s: %v", what, err)
		}
	}
	stop := errors.New("stop")
	if err := Read(strings.NewReader(good), func(turnstone.TraceLine) error {
		return stop
	}); !errors.Is(err, stop) {
		t.Error(err)
	}
}

// FuzzRead: no input makes the decoder fail, or be read in two ways.
func FuzzRead(f *testing.F) {
	f.Add(encode(f, turnstone.TraceReport{Turn: turnstone.TraceHead{ID: "t_1"}}))
	f.Add([]byte(fmt.Sprintf(`{"turn":{"format":%d}}`, Format) + "\n" + `{"end":{}}` + "\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		all, err := decode(b)
		if err == nil && !bytes.Equal(encode(t, all), b) {
			t.Errorf("%q is read as %q", b, encode(t, all))
		}
	})
}
