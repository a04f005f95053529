package console

import (
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"turnstone.dev/turnstone/internal/guest/kernel/need"
	"turnstone.dev/turnstone/internal/guest/machine"
)

// TestAgentsWords checks that both sides use the same words.
func TestAgentsWords(t *testing.T) {
	if failedLine != agentName+machine.FailedWord || CheckWord != machine.CheckWord ||
		checkStart != agentName+machine.CheckStart || checkHas != machine.CheckHas ||
		checkNot != machine.CheckNot || checkKernel != machine.CheckKernel ||
		checkCPUs != machine.CheckCPUs || checkOpen != machine.CheckOpen ||
		checkEnd != machine.CheckEnd || ReadyLine != machine.ReadyLine {
		t.Error("the agent's words are others")
	}
}

func TestReport(t *testing.T) {
	const text = "[    0.1] x\r\nturnstone-agent: check 17 has erofs\r\n" +
		"half a lineturnstone-agent: check 17 lacks tun\r\n" +
		"turnstone-agent: check 17 has \x1b[2J\r\n" +
		"turnstone-agent: check 17 lacks never-heard-of\r\nturnstone-agent: check 17 is odd\r\n" +
		"turnstone-agent: check 17 kernel 6.9.0-own\r\nturnstone-agent: check 17 cpus 2\r\n" +
		"turnstone-agent: check 17 open\r\n"
	r, err := Report(text+
		"turnstone-agent: check 17 ends\r\nturnstone-agent: check 17 has overlay\r\n", "17")
	if err != nil || len(r.Has) != 2 || !r.Has["erofs"] || r.Has["tun"] ||
		r.Release != "6.9.0-own" || r.CPUs != 2 || !r.Open {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := Report(text, "17"); !errors.Is(err, errNoEnd) {
		t.Error("a report without an end is whole")
	}
	if _, err := Report(text+"turnstone-agent: check 17 end", "17"); !errors.Is(err, errNoEnd) {
		t.Error("a report whose last line is cut is whole")
	}
	if _, err := Report(text+"turnstone-agent: check 17 ends", "17"); err != nil {
		t.Errorf("a report without its last line feed: %v", err)
	}
}

// TestForeignReport checks that other output, such as a report without a nonce or with an old
// nonce, neither adds to a report nor ends it.
func TestForeignReport(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nonce := rapid.StringMatching(`[0-9a-f]{32}`).Draw(t, "nonce")
		lines := rapid.SliceOf(rapid.Custom(func(t *rapid.T) string {
			what := rapid.SampledFrom([]string{"has erofs", "has overlay", "lacks tun", "ends",
				"open", "kernel 9.9.9", "cpus 64", "ready"}).Draw(t, "what")
			other := rapid.SampledFrom([]string{"", nonce[:31] + " ", nonce + "0 ",
				"x" + nonce + " ", strings.ToUpper(nonce) + "x ", "ab01 ", nonce + "\n",
				nonce + "\t"}).Draw(t, "other")
			return rapid.SampledFrom([]string{"", "[    0.1] ",
				"Kernel command line: turnstone.check=" + nonce + " "}).Draw(t, "front") +
				rapid.SampledFrom([]string{checkStart, agentName}).Draw(t, "start") + other + what +
				"\r\n"
		})).Draw(t, "lines")
		noise := strings.Join(lines, "")
		if r, err := Report(noise, nonce); !errors.Is(err, errNoEnd) || len(r.Has) > 0 || r.Open ||
			r.Release != "" || r.CPUs != 0 {
			t.Fatalf("%+v, %v of %q", r, err, noise)
		}
		own := checkStart + nonce + " has ext4\r\n" + noise + checkStart + nonce + " ends\r\n"
		if r, err := Report(own, nonce); err != nil || len(r.Has) != 1 || !r.Has["ext4"] || r.Open {
			t.Fatalf("%+v, %v of %q", r, err, own)
		}
		if _, err := Report(own, ""); !errors.Is(err, errNoEnd) {
			t.Fatal("a report is taken without a nonce")
		}
	})
}

// FuzzReport checks that any report names known needs only, and is a printable line.
func FuzzReport(f *testing.F) {
	f.Add("turnstone-agent: check 0 has erofs\r\nturnstone-agent: check 0 lacks tun\n" +
		"turnstone-agent: check 0 kernel \x1b\r\nturnstone-agent: check 0 ends\r\n")
	f.Fuzz(func(t *testing.T, text string) {
		r, _ := Report(text, "0")
		for name := range r.Has {
			if _, known := need.Of(name); !known {
				t.Errorf("the need %q", name)
			}
		}
		if r.Release != Printable(r.Release) || len(r.Release) > maxRelease || r.CPUs < 0 {
			t.Errorf("%+v", r)
		}
	})
}
