package audit

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/leaktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(leaktest.Patient(m)) }

func open(t testing.TB, dir string, o Options) *Log {
	t.Helper()
	l, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func read(t testing.TB, dir string) (all []Entry, s Summary) {
	t.Helper()
	s, err := Read(dir, "", func(e Entry) error { all = append(all, e); return nil })
	if err != nil {
		t.Fatal(err)
	}
	return all, s
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestRotation: lines of many callers, over many files and openings, are all there, once and in a
// chain.
func TestRotation(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "audit")
	for range 3 {
		l := open(t, dir, Options{Size: 2000})
		var all sync.WaitGroup
		for i := range 50 {
			all.Go(func() {
				if err := l.Append(Entry{Method: "m", Object: fmt.Sprint(i), Outcome: Done}); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		must(t, l.Close())
	}
	got, s := read(t, dir)
	count := map[string]int{}
	for _, e := range got {
		count[e.Object]++
	}
	if len(got) != 150 || len(count) != 50 || s.Files < 10 || s.First != 1 || s.Last != 150 {
		t.Errorf("%d lines of %d objects: %+v", len(got), len(count), s)
	}
	names, err := files(dir)
	must(t, err)
	must(t, os.Remove(filepath.Join(dir, names[0])))
	if _, s := read(t, dir); s.First == 1 || s.Last != 150 {
		t.Errorf("without the oldest file: %+v", s)
	}
	must(t, os.Remove(filepath.Join(dir, names[3])))
	if _, err := Read(dir, "", func(Entry) error { return nil }); turnstone.KindOf(err) !=
		turnstone.KindIntegrity {
		t.Errorf("without a file in the middle: %v", err)
	}
}

// TestChain: a line that was changed, removed, added or moved is seen, except at the end, where a
// noted head shows it.
func TestChain(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, Options{})
	for i := range 8 {
		must(t, l.Append(Entry{Method: "m", Object: fmt.Sprint(i), Outcome: Done}))
	}
	must(t, l.Close())
	_, sound := read(t, dir)
	path := filepath.Join(dir, "0000000000000001.jsonl")
	text, err := os.ReadFile(path)
	must(t, err)
	lines := bytes.SplitAfter(bytes.TrimSuffix(text, []byte("\n")), []byte("\n"))
	lines[7] = append(lines[7], '\n')
	rapid.Check(t, func(t *rapid.T) {
		all := slices.Clone(lines)
		i := rapid.IntRange(0, 6).Draw(t, "line")
		switch rapid.IntRange(0, 3).Draw(t, "what") {
		case 0:
			all[i] = bytes.Replace(all[i], []byte(`"method":"m"`), []byte(`"method":"x"`), 1)
		case 1:
			all = slices.Delete(all, i, i+1)
		case 2:
			all = slices.Insert(all, i, all[i])
		case 3:
			all[i], all[i+1] = all[i+1], all[i]
		}
		must2(t, os.WriteFile(path, bytes.Join(all, nil), 0o600))
		if _, err := Read(dir, "", func(Entry) error { return nil }); turnstone.KindOf(err) !=
			turnstone.KindIntegrity {
			t.Fatalf("it is not seen: %v", err)
		}
	})
	must(t, os.WriteFile(path, bytes.Join(lines[:7], nil), 0o600))
	if s, err := Read(dir, sound.Head, func(Entry) error { return nil }); err != nil || s.Known {
		t.Errorf("with a cut end the head is known: %+v, %v", s, err)
	}
	must(t, os.WriteFile(path, text, 0o600))
	if s, err := Read(dir, sound.Head, func(Entry) error { return nil }); err != nil || !s.Known {
		t.Errorf("the head is not known: %+v, %v", s, err)
	}
}

func must2(t *rapid.T, err error) {
	if err != nil {
		t.Fatal(err)
	}
}

// TestCut: a line that a crash has cut, at each of its bytes, is removed and noted; what was
// answered stays.
func TestCut(t *testing.T) {
	from := t.TempDir()
	l := open(t, from, Options{})
	for i := range 3 {
		must(t, l.Append(Entry{Method: "m", Object: fmt.Sprint(i), Outcome: Done}))
	}
	must(t, l.Close())
	text, err := os.ReadFile(filepath.Join(from, "0000000000000001.jsonl"))
	must(t, err)
	end := bytes.LastIndexByte(text[:len(text)-1], '\n') + 1
	for n := end + 1; n < len(text); n++ {
		dir := t.TempDir()
		must(t, os.WriteFile(filepath.Join(dir, "0000000000000001.jsonl"), text[:n], 0o600))
		l := open(t, dir, Options{})
		must(t, l.Append(Entry{Method: "after", Outcome: Done}))
		must(t, l.Close())
		all, _ := read(t, dir)
		if len(all) != 4 || all[1].Object != "1" || all[2].Method != "audit.cut" ||
			all[2].Count != n-end || all[3].Method != "after" {
			t.Fatalf("cut at %d: %+v", n, all)
		}
	}
}

// A fullFile takes a number of bytes, as a disk that becomes full.
type fullFile struct {
	file
	room *int
}

func (f fullFile) WriteAt(p []byte, at int64) (int, error) {
	n := min(len(p), max(0, *f.room))
	*f.room -= n
	if n, err := f.file.WriteAt(p[:n], at); err != nil {
		return n, err
	}
	if n < len(p) {
		return n, syscall.ENOSPC
	}
	return n, nil
}

// TestFull: on a disk that becomes full, in the middle of a line, what was done is kept in memory
// and logged, what is new is refused, and nothing is lost when there is space again.
func TestFull(t *testing.T) {
	dir := t.TempDir()
	var said bytes.Buffer
	l := open(t, dir, Options{Log: slog.New(slog.NewTextHandler(&said, nil)), Sync: time.Hour})
	room := 250
	l.file = fullFile{l.file, &room}
	must(t, l.Append(Entry{Method: "m", Object: "0", Outcome: Done}))
	must(t, l.Ready())
	for i := 1; i < 4; i++ { // operations that had begun
		err := l.Append(Entry{Method: "m", Object: fmt.Sprint(i), Outcome: Done})
		if turnstone.KindOf(err) != turnstone.KindExhausted || !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("line %d: %v", i, err)
		}
	}
	if err := l.Ready(); turnstone.KindOf(err) != turnstone.KindExhausted ||
		!strings.Contains(turnstone.HintOf(err), "free some space") {
		t.Fatalf("ready: %v", err)
	}
	if !strings.Contains(said.String(), `\"object\":\"3\"`) {
		t.Errorf("the log: %s", said.String())
	}
	if all, _ := read(t, dir); len(all) != 1 {
		t.Errorf("%d lines", len(all))
	}
	room = 1 << 20
	must(t, l.Ready())
	must(t, l.Append(Entry{Method: "m", Object: "4", Outcome: Done}))
	must(t, l.Close())
	all, _ := read(t, dir)
	if len(all) != 5 {
		t.Fatalf("%d lines", len(all))
	}
	for i, e := range all {
		if e.Object != fmt.Sprint(i) {
			t.Errorf("line %d is about %s", i, e.Object)
		}
	}
}

// TestFlood: calls that are alike have one line and one with their number; those of many kinds are
// bounded, and counted.
func TestFlood(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, Options{Every: time.Hour})
	for range 10_000 {
		l.Note(Entry{Tenant: "a", Method: "m", Object: "x", Outcome: Refused, Kind: "denied"})
	}
	for i := range 10_000 {
		l.Note(Entry{Tenant: fmt.Sprint("t", i), Method: "m", Outcome: Refused})
	}
	must(t, l.Append(Entry{Method: "m", Outcome: Done}))
	must(t, l.Close())
	all, _ := read(t, dir)
	sum := 0
	for _, e := range all {
		if sum += max(e.Count, 1); e.Count > 0 && e.Since.IsZero() {
			t.Errorf("%+v", e)
		}
	}
	if len(all) > 2*maxRepeats || sum != 20_001 {
		t.Errorf("%d lines for %d calls", len(all), sum)
	}
}

// TestHostile: no text of a caller ends a line or forges another.
func TestHostile(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp("", "audit-")
		must2(rt, err)
		defer func() { _ = os.RemoveAll(dir) }()
		l, err := Open(dir, Options{})
		must2(rt, err)
		text := string(rapid.SliceOfN(rapid.Byte(), 0, 400).Draw(rt, "text"))
		if rapid.Bool().Draw(rt, "forged") {
			text = "x\"}\n{\"seq\":2,\"method\":\"forged\"}\n" + text
		}
		must2(rt, l.Append(Entry{Subject: text, Tenant: text, Object: text, Address: text,
			Method: "m", Outcome: Refused}))
		must2(rt, l.Append(Entry{Method: "n", Outcome: Done}))
		must2(rt, l.Close())
		var all []Entry
		_, err = Read(dir, "", func(e Entry) error { all = append(all, e); return nil })
		must2(rt, err)
		if len(all) != 2 || all[0].Method != "m" || all[1].Method != "n" ||
			len(all[0].Subject) > maxText+8 {
			rt.Fatalf("%+v", all)
		}
	})
}

// FuzzRead reads a damaged log without a panic.
func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"seq":1,"prev":"","time":"2026-01-01T00:00:00Z","method":"m","outcome":"done"}` + "\n"))
	f.Add([]byte("{}\n{}\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		dir := t.TempDir()
		must(t, os.WriteFile(filepath.Join(dir, "0000000000000001.jsonl"), text, 0o600))
		n := uint64(0)
		s, err := Read(dir, "", func(Entry) error { n++; return nil })
		if err == nil && n != s.Lines {
			t.Errorf("%d lines, not %d", n, s.Lines)
		}
	})
}
