package process

import (
	"bytes"
	"context"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"turnstone.dev/turnstone/internal/leaktest"
)

func TestMain(m *testing.M) {
	if os.Getenv(inSpace) != "" {
		os.Exit(playMachine())
	}
	goleak.VerifyTestMain(leaktest.Patient(m))
}

// put writes p to a log as a pump does.
func put(l *Log, p []byte) {
	for len(p) > 0 {
		buf := l.room()
		if buf == nil {
			return
		}
		n := copy(buf, p)
		l.wrote(n)
		p = p[n:]
	}
}

// TestLog: for any writes and any start offsets, each reader gets all later bytes, and at least the
// bound is kept.
func TestLog(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		keep := rapid.SampledFrom([]int64{1, 1000, chunkSize, 200_000}).Draw(t, "keep")
		l := newLog(newChunks(), keep)
		var all []byte
		for i, n := range rapid.SliceOfN(rapid.IntRange(1, 3*chunkSize), 1, 12).Draw(t, "writes") {
			part := bytes.Repeat([]byte{byte('a' + i%26)}, n)
			part[0] = '|'
			put(l, part)
			all = append(all, part...)
		}
		first, end := l.Range()
		if end != int64(len(all)) || end-first < min(end, keep) || end-first > keep+2*chunkSize {
			t.Fatalf("kept %d to %d of %d with %d", first, end, len(all), keep)
		}
		from := rapid.Int64Range(0, end).Draw(t, "from")
		r, offset := l.Attach(context.Background(), from, Follower)
		if offset != max(from, first) {
			t.Fatalf("begins at %d, want %d", offset, max(from, first))
		}
		if rapid.Bool().Draw(t, "ended first") {
			l.end()
		} else {
			time.AfterFunc(time.Millisecond, l.end) //wait: any moment is right
		}
		var got []byte
		limit := rapid.IntRange(1000, 2*chunkSize).Draw(t, "limit")
		for {
			data, at, ok := r.Next(limit)
			if !ok {
				break
			}
			if at != offset+int64(len(got)) || len(data) > limit {
				t.Fatalf("%d bytes at %d", len(data), at)
			}
			got = append(got, data...)
		}
		r.Close()
		if !bytes.Equal(got, all[offset:]) {
			t.Fatal("the bytes differ")
		}
		l.forget()
		if used := l.pool.used.Load(); used != 0 {
			t.Fatalf("%d bytes are not given back", used)
		}
	})
}

// TestLogWaits: the writer waits for an attached reader, and continues without it.
func TestLogWaits(t *testing.T) {
	l := newLog(newChunks(), 4*chunkSize)
	ctx, cancel := context.WithCancel(t.Context())
	r, _ := l.Attach(ctx, 0, Follower)
	done := make(chan struct{})
	go func() {
		put(l, make([]byte, 20*chunkSize))
		close(done)
	}()
	data, _, _ := r.Next(10)
	select {
	case <-done:
		t.Fatal("the writer did not wait")
	case <-time.After(50 * time.Millisecond): //wait: longer only makes the check stricter
	}
	if _, end := l.Range(); end > 6*chunkSize {
		t.Errorf("%d bytes were written ahead of the reader", end)
	}
	cancel()
	<-done
	if first, end := l.Range(); end != 20*chunkSize || end-first > 5*chunkSize {
		t.Errorf("%d to %d", first, end)
	}
	if len(data) != 10 { // still the reader's
		t.Error("no data")
	}
	if _, _, ok := r.Next(10); ok {
		t.Error("a reader that was closed goes on")
	}
	r.Close()
	l.forget()
	if used := l.pool.used.Load(); used != 0 {
		t.Errorf("%d bytes are not given back", used)
	}
}

// TestBudget: many logs together keep less each.
func TestBudget(t *testing.T) {
	pool := newChunks()
	var logs []*Log
	for range 200 {
		l := newLog(pool, keepBytes)
		put(l, make([]byte, 2*keepBytes))
		logs = append(logs, l)
	}
	if used := pool.used.Load(); used > budget+200*(keepLess+2*chunkSize) {
		t.Errorf("%d MiB are kept", used>>20)
	}
	for _, l := range logs {
		l.forget()
	}
	if used := pool.used.Load(); used != 0 {
		t.Errorf("%d bytes are not given back", used)
	}
}

func TestEndedAreBounded(t *testing.T) {
	table, err := NewTable(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = table.Close() }()
	for i := range 24 {
		p, err := table.Start(Spec{ID: strconv.Itoa(i),
			Argv: []string{"/usr/bin/head", "-c", "3000000", "/dev/zero"}, Cwd: "/"})
		if err != nil {
			t.Fatal(err)
		}
		<-p.Done()
	}
	list := table.List()
	var kept int64
	for _, p := range list {
		kept += p.kept()
	}
	if len(list) < 10 || len(list) == 24 || kept > keepEndedAll || list[len(list)-1].ID != "23" {
		t.Errorf("%d processes with %d MiB", len(list), kept>>20)
	}
}

func TestSignals(t *testing.T) {
	for text, want := range map[string]syscall.Signal{"TERM": 15, "sigkill": 9, "SIGUSR1": 10,
		"2": 2, "64": 64} {
		if got, err := ParseSignal(text); err != nil || got != want {
			t.Errorf("%s: %v %v", text, got, err)
		}
	}
	for _, text := range []string{"", "0", "65", "-1", "NO", strings.Repeat("x", 1000)} {
		if got, err := ParseSignal(text); err == nil || len(err.Error()) > 300 {
			t.Errorf("%.10s: %v %v", text, got, err)
		}
	}
}

func TestShorten(t *testing.T) {
	long := strings.Repeat("ä", 3000)
	for _, argv := range [][]string{{"a", long, "b"}, {long}, slices.Repeat([]string{""}, 5000),
		{"a", "b"}} {
		short := shorten(argv)
		total := 0
		for _, a := range short {
			total += len(a) + 1
		}
		cut := strings.HasSuffix(short[len(short)-1], "…")
		if total > maxArgv+len("…")+1 || !utf8.ValidString(strings.Join(short, " ")) ||
			cut == (len(argv) == 2) {
			t.Errorf("%d arguments of %d bytes", len(short), total)
		}
	}
}

// TestIdleIsCheap: a log with little data uses little memory.
func TestIdleIsCheap(t *testing.T) {
	pool := newChunks()
	for _, tt := range []struct{ bytes, most int }{{0, 1 << 10}, {100, 1 << 10}, {2000, 9 << 10},
		{20_000, 9<<10 + chunkSize}} {
		l := newLog(pool, keepBytes)
		put(l, make([]byte, tt.bytes))
		_ = l.room() // like a pump that waits for more
		if used := pool.used.Load(); used > int64(tt.most) {
			t.Errorf("%d bytes take %d", tt.bytes, used)
		}
		l.forget()
	}
}

// TestNextTellsLoss: the second reader blocks nothing, and learns about its loss.
func TestNextTellsLoss(t *testing.T) {
	l := newLog(newChunks(), chunkSize)
	first, _ := l.Attach(t.Context(), 0, Follower)
	second, _ := l.Attach(t.Context(), 0, Follower)
	defer second.Close()
	go func() {
		put(l, make([]byte, 10*chunkSize))
		l.end()
	}()
	var at int64
	for {
		data, offset, ok := first.Next(chunkSize)
		if !ok {
			break
		}
		if offset != at {
			t.Fatalf("the first reader lost something: %d after %d", offset, at)
		}
		at += int64(len(data))
	}
	first.Close()
	if at != 10*chunkSize {
		t.Errorf("the first reader got %d bytes", at)
	}
	kept, _ := l.Range()
	if data, offset, ok := second.Next(10); !ok || kept == 0 || offset != kept || len(data) != 10 {
		t.Errorf("%d bytes at %d, %v; %d is the oldest", len(data), offset, ok, kept)
	}
	l.forget()
	if data, offset, ok := second.Next(10); !ok || offset != 10*chunkSize || len(data) != 0 {
		t.Errorf("%d bytes at %d, %v", len(data), offset, ok)
	}
	if _, _, ok := second.Next(10); ok {
		t.Error("no end")
	}
}
