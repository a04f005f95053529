package diagnose

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone/internal/lang/syntax"
)

// walked is index.line without an index.
func walked(code []byte, n int) (from, to int, ok bool) {
	if n < 1 {
		return 0, 0, false
	}
	for range n - 1 {
		i := bytes.IndexByte(code[from:], '\n')
		if i < 0 {
			break
		}
		from += i + 1
	}
	lines := 1 + bytes.Count(code[:from], []byte("\n"))
	if lines < n-1 || (lines < n && len(code) == 0) {
		return 0, 0, false
	}
	if lines < n || (from == len(code) && n > 1) {
		to = len(bytes.TrimRight(code, " \t\r\n"))
		return to, to, true
	}
	to = len(code)
	if i := bytes.IndexByte(code[from:], '\n'); i >= 0 {
		to = from + i
	}
	return from, to, true
}

func TestIndex(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 3000 {
		src := make([]byte, rnd.IntN(12))
		for i := range src {
			src[i] = "\n\nab \t"[rnd.IntN(6)]
		}
		x := newIndex(&syntax.Script{Source: src})
		start := rnd.IntN(len(src) + 1)
		end := start + rnd.IntN(len(src)-start+1)
		for n := range len(src) + 4 {
			from, to, ok := x.line(start, end, n)
			if f, o, k := walked(src[start:end], n); f != from || o != to || k != ok {
				t.Fatalf("line %d of %q is %d to %d, %v; want %d to %d, %v", n,
					src[start:end], from, to, ok, f, o, k)
			}
		}
		line, column := x.place(start)
		if line != 1+bytes.Count(src[:start], []byte("\n")) ||
			column != start-bytes.LastIndexByte(src[:start], '\n') {
			t.Fatalf("byte %d of %q is at %d:%d", start, src, line, column)
		}
	}
}

// TestManyMessages: a repeated message about a long script costs little more processor time than a single
// message.
func TestManyMessages(t *testing.T) {
	const lines = 100_000
	script := syntax.ParseAs([]byte(strings.Repeat("echo hello world\n", lines)), "bash")
	d := Steps([]Step{{Path: "/run/turn/1-x.sh", Script: script}})
	took := func(messages int) time.Duration {
		var said strings.Builder
		for i := range messages {
			fmt.Fprintf(&said, "/run/turn/1-x.sh: line %d: zork%d: nope\n", lines-i, i)
		}
		best := time.Hour
		for range 3 {
			began := cpuTime(t)
			found := d.Find(0, Failure{Command: lines - 1, ExitCode: 1,
				Stderr: []byte(said.String())})
			best = min(best, cpuTime(t)-began)
			if len(found) != min(messages, maxFound) || found[0].Span.Line != lines-messages+1 {
				t.Fatalf("%d findings, the first %+v", len(found), found[0])
			}
		}
		return best
	}
	once, many := took(1), took(maxReports)
	if many > 4*once+20*time.Millisecond {
		t.Errorf("one message takes %v, %d of them %v", once, maxReports, many)
	}
	t.Log(once, many)
}
