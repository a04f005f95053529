package console

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestHanging checks that a guest hangs when it has been idle, or has computed, for longer than
// allowed since its last line; time in which the host gives it nothing does not count.
func TestHanging(t *testing.T) {
	p := Patience{Idle: 3 * time.Second, Work: 5 * time.Second}
	rapid.Check(t, func(t *rapid.T) {
		var h hanging
		var cpu, idle, work time.Duration
		now, lines := time.Unix(1, 0), 0
		_ = h.look(p, lines, now, Load{}, true)
		for range rapid.IntRange(0, 60).Draw(t, "looks") {
			passed := time.Duration(rapid.IntRange(1, 1000).Draw(t, "passed")) * time.Millisecond
			now = now.Add(passed)
			l, known := Load{}, true
			switch rapid.SampledFrom([]string{"idle", "starved", "works", "unknown", "line"}).Draw(
				t, "does") {
			case "idle":
				idle += passed
			case "starved": // ready to run, but without a processor, or waiting for a slow disk
				l.Busy = true
			case "works":
				cpu, work, l.Busy = cpu+passed, work+passed, true
			case "unknown":
				work, known = work+passed, false
			case "line":
				lines, idle, work = lines+1, 0, 0
			}
			l.CPU = cpu
			if err, want := h.look(p, lines, now, l, known), idle > p.Idle ||
				work > p.Work; errors.Is(err, ErrHangs) != want {
				t.Fatalf("idle for %s, worked for %s: %v", idle, work, err)
			} else if want {
				return
			}
		}
	})
}

// TestAwait checks that the end of the wait is reported with the guest's last words, without the
// firmware's.
func TestAwait(t *testing.T) {
	idle := func() (Load, error) { return Load{}, nil }
	ended, canceled := make(chan struct{}), func() context.Context {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		return ctx
	}()
	close(ended)
	short := Patience{Idle: time.Millisecond, Work: time.Millisecond, Limit: time.Hour}
	for _, tt := range []struct {
		said string
		ctx  context.Context
		p    Patience
		done chan struct{}
		is   error
		says string
	}{
		{"turnstone-agent: ready\n", t.Context(), short, nil, nil, ""},
		{"Booting from ROM...", t.Context(), short, nil, ErrHangs, "; the console is empty"},
		{"Booting from ROM...\r\nso \x1b[2Jfar\r\n", t.Context(), short, nil, ErrHangs,
			`; the console ends: "so ?[2Jfar"`},
		{"x", t.Context(), Patience{Idle: time.Hour, Work: time.Hour}, nil, ErrLate,
			`within 0s: that is too long; the console ends: "x"`},
		{"", canceled, short, nil, context.Canceled, ""},
		{"", t.Context(), Patience{Idle: time.Hour, Work: time.Hour, Limit: time.Hour}, ended,
			ErrEnded, ""},
	} {
		w := New()
		_, _ = w.Write([]byte(tt.said))
		if err := w.Await(tt.ctx, tt.p, idle, tt.done); !errors.Is(err, tt.is) || err != nil &&
			!strings.Contains(err.Error(), tt.says) {
			t.Errorf("%q: %v", tt.said, err)
		}
	}
	const log = "2026-11-22T04:00:01.123456789 [sb-06h03:fc_vcpu 0:WARN] Received a " +
		"VcpuEvent::Resume message with immediate_exit enabled.\n"
	for said, want := range map[string]string{
		log: "", "so far\n" + log + log: "so far", "so far\r\n" + log + "\r\n\r\n": "so far",
		"half a li" + log: "half a li", log + "then": "then",
		"[sb-x] 2026-11-22T04:00:01.1 [x:WARN] mine": "[sb-x] 2026-11-22T04:00:01.1 [x:WARN] mine",
		"\r\n \n": "",
	} {
		w := New()
		_, _ = w.Write([]byte(said))
		if got := w.LastWords(); got != want {
			t.Errorf("%q ends with %q, want %q", said, got, want)
		}
	}
	w := New()
	_, _ = w.Write([]byte(panicText + "no tables\n"))
	var gaveUp *GaveUp
	if err := w.Await(t.Context(), short, idle, nil); !errors.As(err, &gaveUp) ||
		gaveUp.Why != "the guest kernel panicked: no tables" {
		t.Error(err)
	}
}

// TestLogIsNotTheGuests checks that only the guest's lines count and are quoted, however its
// output, Firecracker's log and the chunks are mixed, even if the log has displaced the guest's
// lines from the kept text.
func TestLogIsNotTheGuests(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var all strings.Builder
		lines, last, open := 0, "", ""
		for range rapid.IntRange(0, 15).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{"line", "part", "log"}).Draw(t, "step") {
			case "line":
				said := rapid.StringMatching(`[a-z]{0,9}`).Draw(t, "said")
				all.WriteString(said + "\r\n")
				if open += said; open != "" {
					last = open
				}
				lines, open = lines+1, ""
			case "part":
				open += "part"
				all.WriteString("part")
			case "log":
				log := "2026-11-22T04:00:01.123456789 [sb-06h03:fc_vcpu 0:WARN] Invalid MMIO " +
					"read @ 0xfffffffd:0x1"
				n := rapid.SampledFrom([]int{0, 400, 2000}).Draw(t, "long")
				log += strings.Repeat(".", n) + "\n"
				all.WriteString(log)
				if rapid.Bool().Draw(t, "flood") {
					all.WriteString(strings.Repeat(log, kept/len(log)+1))
				}
				if open != "" {
					last, open = open, ""
				}
			}
		}
		if open != "" {
			last = open
		}
		w := New()
		for text := all.String(); text != ""; {
			n := min(len(text), rapid.SampledFrom([]int{500, 4096, 1 << 20}).Draw(t, "chunk"))
			_, _ = w.Write([]byte(text[:n]))
			text = text[n:]
		}
		if got := w.Lines(); got != lines {
			t.Fatalf("%d lines, want %d", got, lines)
		}
		if got := w.LastWords(); got != last {
			t.Fatalf("ends with %q, want %q", got, last)
		}
	})
}
