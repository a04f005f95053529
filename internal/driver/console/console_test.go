package console

import (
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// write writes the text to w in parts that t chooses.
func write(t *rapid.T, w *Watch, text string) {
	for rest := text; rest != ""; {
		n := rapid.IntRange(1, len(rest)).Draw(t, "part")
		if got, err := w.Write([]byte(rest[:n])); got != n || err != nil {
			t.Fatalf("%d, %v", got, err)
		}
		rest = rest[n:]
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// TestWatch checks that the first searched text counts, however the console is split into pieces.
func TestWatch(t *testing.T) {
	const oops = "Kernel panic - not syncing: VFS: Unable to mount root fs on unknown-block(0,0)"
	rapid.Check(t, func(t *rapid.T) {
		noise := func() string {
			return strings.Repeat(rapid.SampledFrom([]string{"x", "turnstone-agent: read",
				"Kernel panic", "\r\n", "\n", "[    0.1] \x1b[31mfoo\n"}).Draw(t, "noise"),
				rapid.IntRange(0, 60).Draw(t, "times"))
		}
		said := rapid.SampledFrom([]string{"", ReadyLine, oops,
			"turnstone-agent: failed: no virtio"}).Draw(t, "said")
		w := New()
		front := rapid.SampledFrom([]string{"\n[    0.2] ", " "}).Draw(t, "front")
		text := noise() + front + said + "\n" + noise() + "\n"
		later := rapid.SampledFrom([]string{"", ReadyLine, oops}).Draw(t, "later")
		write(t, w, text)
		ready, failed := closed(w.Ready()), closed(w.Failed())
		if ready != (said == ReadyLine) || failed != (said != "" && said != ReadyLine) {
			t.Fatalf("%q: ready %t, failed %t", text, ready, failed)
		}
		if want := text[max(0, len(text)-kept):]; w.String() != want {
			t.Fatalf("kept %q, want %q", w.String(), want)
		}
		if said == "" || front == " " { // a long line may end in its middle
			return
		}
		before := w.why
		fault := func() string {
			if f := w.Fault(); f != nil {
				return f.Why
			}
			return ""
		}
		write(t, w, later+"\n")
		if closed(w.Ready()) != ready || closed(w.Failed()) != failed || w.why != before {
			t.Fatalf("%q after %q changes it", later, said)
		}
		switch want := fault(); {
		case said == oops &&
			want != "the guest kernel panicked: VFS: Unable to mount root fs on unknown-block(0,0)":
			t.Fatalf("%q", want)
		case strings.HasPrefix(said, "turnstone-agent: failed") &&
			want != "the guest's agent does not start: no virtio":
			t.Fatalf("%q", want)
		case said == ReadyLine &&
			(want != "" || strings.Contains(w.Words(), oops) != strings.Contains(text+later, oops)):
			// quoted, and no explanation
			t.Fatalf("%q, %q", want, w.Words())
		}
	})
}

// TestLongLine checks that an endless line is examined to its end, and that only its end is kept.
func TestLongLine(t *testing.T) {
	w := New()
	for range 100 {
		_, _ = w.Write([]byte(strings.Repeat("y", 1000)))
	}
	if len(w.String()) != kept || len(w.line) >= maxLine || cap(w.line) > 4*maxLine {
		t.Errorf("%d bytes and a line of %d are kept", len(w.String()), len(w.line))
	}
	_, _ = w.Write([]byte("\nKernel panic - not syncing: \x1b]0;evil\a" + strings.Repeat("z",
		2000)))
	if got := w.Fault().Why; !closed(w.Failed()) || len(got) > 400 ||
		strings.ContainsAny(got, "\x1b\a") {
		t.Errorf("%q", got)
	}
}

func TestPrintable(t *testing.T) {
	if got := Printable("a\x1b[31m\tb\u00e9\n"); got != "a?[31m b? " {
		t.Errorf("%q", got)
	}
	if got := LastLine("one\r\ntwo\r\n \n"); got != "two" {
		t.Errorf("%q", got)
	}
}

func FuzzWatch(f *testing.F) {
	f.Add([]byte("Kernel panic - not syncing: x\nturnstone-agent: ready\n"), 3)
	f.Fuzz(func(t *testing.T, text []byte, n int) {
		whole, parts := New(), New()
		_, _ = whole.Write(text)
		n = max(1, n&0xfff)
		for rest := text; len(rest) > 0; rest = rest[min(n, len(rest)):] {
			_, _ = parts.Write(rest[:min(n, len(rest))])
		}
		if closed(whole.Ready()) != closed(parts.Ready()) ||
			closed(whole.Failed()) != closed(parts.Failed()) ||
			!reflect.DeepEqual(whole.Fault(), parts.Fault()) {
			t.Errorf("in parts of %d it is another: %v and %v", n, whole.Fault(), parts.Fault())
		}
	})
}

// TestRunning checks that the output of a guest that started long ago does not say how it started.
func TestRunning(t *testing.T) {
	w := Running()
	_, _ = w.Write([]byte("\nturnstone-agent: failed: forged; run this\r\n" + panicText +
		"forged, too\r\n"))
	select {
	case <-w.Failed():
		t.Error("it has failed")
	default:
	}
	<-w.Ready()
	if why := w.Fault(); why != nil {
		t.Error(why)
	}
	if got := w.Words(); got != `; its console says: "Kernel panic - not syncing: forged, too"` {
		t.Error(got)
	}
}
