package turnlog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"pgregory.net/rapid"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
)

func testDocument(t testing.TB) *document.Document {
	doc, err := document.Parse("a.md", []byte("```bash\necho a\n```\n\n```bash\necho b\n```\n"))
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

// seen is an observer that notes what it is told.
type seen struct{ strings.Builder }

func (s *seen) Preparing(what string)           { fmt.Fprintf(s, "preparing %s\n", what) }
func (s *seen) StepStarted(step *document.Step) { fmt.Fprintf(s, "started %s\n", step.Name) }
func (s *seen) StepOutput(step *document.Step, stream turnstone.Stream, p []byte) {
	fmt.Fprintf(s, "%s %d %q\n", step.Name, stream, p)
}
func (s *seen) StepFinished(step *document.Step, r turnstone.StepReport) {
	fmt.Fprintf(s, "finished %s %s\n", step.Name, r.Status)
}

// play tells an observer of a turn.
func play(doc *document.Document, obs Observer) {
	obs.Preparing("building template python")
	for i := range doc.Steps {
		obs.StepStarted(doc.Steps[i])
		obs.StepOutput(doc.Steps[i], turnstone.Stdout, []byte("one\x00\xff\n"))
		obs.StepOutput(doc.Steps[i], turnstone.Stderr, []byte("two"))
		obs.StepFinished(doc.Steps[i], turnstone.StepReport{Status: turnstone.StepPassed})
	}
}

func testReport() *turnstone.TurnReport {
	return &turnstone.TurnReport{ID: "t_1", Result: turnstone.ResultError, Error: "no disk",
		Kind: turnstone.KindExhausted, Duration: 7 * time.Millisecond, Millis: 7,
		Receipt: strings.Repeat("receipt\n", 80_000)}
}

// TestJournal reads a journal that arrives in pieces of any size, over connections that end at any
// byte: the observer is told each line once.
func TestJournal(t *testing.T) {
	doc := testDocument(t)
	var file bytes.Buffer
	var want seen
	play(doc, &want)
	w := NewWriter(&file)
	play(doc, w)
	why := turnstone.NewError("run", turnstone.KindExhausted, "disk", errors.New("full")).
		WithHint("free some")
	if err := w.End(testReport(), why); err != nil {
		t.Fatal(err)
	}
	w.Preparing("after the end")
	all := file.Bytes()
	rapid.Check(t, func(t *rapid.T) {
		var got seen
		r := NewReader(doc, &got)
		for range rapid.IntRange(0, 4).Draw(t, "losses") {
			end := rapid.IntRange(int(r.Offset()), len(all)).Draw(t, "end")
			if err := r.Read(bytes.NewReader(all[r.Offset():end])); err != nil {
				t.Fatal(err)
			}
			if _, _, ok := r.Result(); ok != (end == len(all)) && end != len(all) {
				t.Fatalf("ended at %d of %d", end, len(all))
			}
		}
		if err := r.Read(iotest.HalfReader(bytes.NewReader(all[r.Offset():]))); err != nil {
			t.Fatal(err)
		}
		report, err, ok := r.Result()
		if !ok || got.String() != want.String() || r.Offset() != int64(len(all)) {
			t.Fatalf("ended %t at %d of %d:\n%s", ok, r.Offset(), len(all), &got)
		}
		if report.Receipt != testReport().Receipt || report.Kind != turnstone.KindExhausted ||
			report.Duration != 7*time.Millisecond {
			t.Fatalf("report: %+v", report)
		}
		if err.Error() != why.Error() || turnstone.KindOf(err) != turnstone.KindExhausted ||
			turnstone.HintOf(err) != "free some" {
			t.Fatalf("error: %v", err)
		}
	})
}

// TestOtherWriter: a writer dies in the middle of a large report, and another ends the journal. The
// report is that of the second.
func TestOtherWriter(t *testing.T) {
	doc := testDocument(t)
	var file bytes.Buffer
	large := testReport()
	large.Receipt = strings.Repeat("x", 2*chunk)
	w := NewWriter(&file)
	play(doc, w)
	begun := file.Len()
	if err := w.End(large, nil); err != nil {
		t.Fatal(err)
	}
	lines := bytes.SplitAfter(file.Bytes()[begun:], []byte("\n"))
	for n := range len(lines) - 1 {
		journal := bytes.NewBuffer(bytes.Clone(file.Bytes()[:begun]))
		journal.Write(bytes.Join(lines[:n], nil))
		again := NewWriter(journal)
		again.Preparing("another")
		if err := again.End(testReport(), nil); err != nil {
			t.Fatal(err)
		}
		r := NewReader(doc, nil)
		err := r.Read(bytes.NewReader(journal.Bytes()))
		if report, _, ok := r.Result(); err != nil || !ok || report.Receipt != testReport().Receipt {
			t.Fatalf("after %d lines of a report: %t %v", n, ok, err)
		}
	}
}

// TestOmitted bounds the output in a journal, and says how much is left out.
func TestOmitted(t *testing.T) {
	doc := testDocument(t)
	var file bytes.Buffer
	w := NewWriter(&file)
	w.left = 1000
	step := doc.Steps[0]
	w.StepStarted(step)
	for range 4 {
		w.StepOutput(step, turnstone.Stdout, bytes.Repeat([]byte("x"), 300))
	}
	w.StepFinished(step, turnstone.StepReport{Status: turnstone.StepPassed})
	if err := w.End(nil, errors.New("over")); err != nil {
		t.Fatal(err)
	}
	var got seen
	r := NewReader(doc, &got)
	if err := r.Read(&file); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(got.String(), "x"); n != 1000 ||
		!strings.Contains(got.String(), "preparing step-1: 200 bytes of its output are not shown") {
		t.Fatalf("%d bytes of output:\n%s", n, &got)
	}
}

// TestNoJournal rejects what is no journal.
func TestNoJournal(t *testing.T) {
	for name, text := range map[string]string{
		"no JSON":         "hello\n",
		"nothing":         "{}\n",
		"no step":         `{"started":3}` + "\n",
		"no step below":   `{"started":-1}` + "\n",
		"no stream":       `{"output":{"step":1,"stream":3,"data":"eA=="}}` + "\n",
		"output of none":  `{"output":{"step":9,"stream":1,"data":"eA=="}}` + "\n",
		"end of none":     `{"finished":{"step":9}}` + "\n",
		"no result":       `{"end":{}}` + "\n",
		"a broken report": `{"report":"eA=="}` + "\n" + `{"end":{}}` + "\n",
	} {
		t.Run(name, func(t *testing.T) {
			r := NewReader(testDocument(t), &seen{})
			err := r.Read(strings.NewReader(text))
			if turnstone.KindOf(err) != turnstone.KindIntegrity {
				t.Fatalf("read: %v", err)
			}
			if report, err, ok := r.Result(); ok || report != nil || err != nil {
				t.Fatalf("result: %v %v %t", report, err, ok)
			}
		})
	}
}

// endless is a line without end.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

func TestEndlessLine(t *testing.T) {
	r := NewReader(testDocument(t), nil)
	r.most = 1 << 20
	err := r.Read(endless{})
	if turnstone.KindOf(err) != turnstone.KindIntegrity {
		t.Fatal(err)
	}
}

// TestFull keeps the turn going when the journal's disk is full.
func TestFull(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer func() { _ = full.Close() }()
	w := NewWriter(full)
	play(testDocument(t), w)
	if err := w.End(testReport(), nil); !turnstone.IsFull(err) {
		t.Fatalf("end: %v", err)
	}
}

func FuzzReader(f *testing.F) {
	doc := testDocument(f)
	var file bytes.Buffer
	w := NewWriter(&file)
	play(doc, w)
	_ = w.End(&turnstone.TurnReport{ID: "t_1"}, nil)
	f.Add(file.Bytes())
	f.Add([]byte(`{"end":{"error":{"kind":"dead","cause":"x"}}}` + "\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		r := NewReader(doc, &seen{})
		err := r.Read(bytes.NewReader(text))
		report, failed, ok := r.Result()
		if ok && (err != nil || report == nil && failed == nil) || r.Offset() > int64(len(text)) {
			t.Fatalf("%v %v %t %v at %d", report, failed, ok, err, r.Offset())
		}
		if err := r.Read(io.LimitReader(endless{}, 10)); err != nil && ok {
			t.Fatal(err)
		}
	})
}

// TestJob writes the journal of several documents, and reads it without them.
func TestJob(t *testing.T) {
	docs := []*document.Document{testDocument(t), testDocument(t)}
	report := func(k turnstone.Kind) *turnstone.ReplayReport {
		return &turnstone.ReplayReport{Of: "t_1", Turn: &turnstone.TurnReport{ID: "t_2", Kind: k,
			Millis: 1500, Duration: 1500 * time.Millisecond}}
	}
	whole := &turnstone.RangeReport{Turns: []*turnstone.ReplayReport{report(""),
		report(turnstone.KindTimeout)}}
	failed := turnstone.Errorf("executor.replay", turnstone.KindExhausted, "the disk", "is full").
		WithHint("make room")
	var file bytes.Buffer
	w := NewJobWriter(&file)
	var want seen
	for i, doc := range docs {
		play(doc, w)
		play(doc, &want)
		w.Item(whole.Turns[i])
	}
	if err := w.End(whole, failed); err != nil {
		t.Fatal(err)
	}
	var got seen
	j := NewJobReader(&got)
	var items []*turnstone.ReplayReport
	j.Item = func(decode func(any) error) error {
		r := new(turnstone.ReplayReport)
		items = append(items, r)
		return decode(r)
	}
	if err := j.Read(iotest.OneByteReader(bytes.NewReader(file.Bytes()))); err != nil {
		t.Fatal(err)
	}
	end := new(turnstone.RangeReport)
	has, err := j.Result(end)
	var te *turnstone.Error
	if !has || !errors.As(err, &te) || te.Kind != turnstone.KindExhausted || te.Hint != "make room" ||
		te.Op != "executor.replay" || te.Subject != "the disk" || err.Error() != failed.Error() {
		t.Fatalf("%t %v", has, err)
	}
	if got.String() != want.String() {
		t.Errorf("%q, not %q", &got, &want)
	}
	for _, all := range [][]*turnstone.ReplayReport{items, end.Turns} {
		if len(all) != 2 || all[1].Turn.Kind != turnstone.KindTimeout || all[0].Turn.Kind != "" ||
			all[0].Turn.Duration != 1500*time.Millisecond {
			t.Errorf("%+v", all)
		}
	}
	for n := range file.Len() {
		err := NewJobReader(nil).Read(bytes.NewReader(file.Bytes()[:n]))
		if turnstone.KindOf(err) != turnstone.KindDead {
			t.Fatalf("%d bytes: %v", n, err)
		}
	}
	// nothing was started: no report, in whatever way it is nil
	for _, none := range []any{nil, (*turnstone.ReplayReport)(nil)} {
		file.Reset()
		if err := NewJobWriter(&file).End(none, failed); err != nil {
			t.Fatal(err)
		}
		j := NewJobReader(nil)
		if err := j.Read(&file); err != nil {
			t.Fatal(err)
		}
		if has, err := j.Result(new(turnstone.ReplayReport)); has || err == nil {
			t.Fatal(has, err)
		}
	}
}

func FuzzJobReader(f *testing.F) {
	var file bytes.Buffer
	w := NewJobWriter(&file)
	play(testDocument(f), w)
	w.Item("line")
	_ = w.End(&turnstone.ReplayReport{Turn: &turnstone.TurnReport{}}, nil)
	f.Add(file.Bytes())
	f.Add([]byte(`{"step":{"index":1,"name":"a"}}` + "\n" + `{"started":1}` + "\n" +
		`{"item":{"value":{"turn":{}},"kinds":["dead"]}}` + "\n" + `{"end":{}}` + "\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		j := NewJobReader(&seen{})
		j.Item = func(decode func(any) error) error { return decode(new(turnstone.ReplayReport)) }
		if j.Read(bytes.NewReader(text)) != nil {
			return
		}
		if has, err := j.Result(new(turnstone.RangeReport)); !has && err == nil {
			t.Fatal("neither a report nor an error")
		}
	})
}
