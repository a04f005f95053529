package console

import (
	"errors"
	"testing"

	"turnstone.dev/turnstone/agent"
	"turnstone.dev/turnstone/kernel/need"
)

// TestAgentsWords: both sides know the same words.
func TestAgentsWords(t *testing.T) {
	if failedLine != agentName+agent.FailedWord || CheckWord != agent.CheckWord || checkHas != agentName+agent.CheckHas ||
		checkNot != agentName+agent.CheckNot || checkEnd != agentName+agent.CheckEnd || ReadyLine != agent.ReadyLine {
		t.Error("the agent's words are others")
	}
}

func TestReport(t *testing.T) {
	const text = "[    0.1] x\r\nturnstone-agent: check has erofs\r\nhalf a lineturnstone-agent: check lacks tun\r\n" +
		"turnstone-agent: check has \x1b[2J\r\nturnstone-agent: check lacks never-heard-of\r\nturnstone-agent: check is odd\r\n"
	has, err := Report(text + "turnstone-agent: check ends\r\nturnstone-agent: check has overlay\r\n")
	if err != nil || len(has) != 2 || !has["erofs"] || has["tun"] {
		t.Errorf("%v, %v", has, err)
	}
	if _, err := Report(text); !errors.Is(err, ErrNoEnd) {
		t.Error("a report without an end is whole")
	}
	if _, err := Report(text + "turnstone-agent: check ends"); !errors.Is(err, ErrNoEnd) {
		t.Error("a report whose last line is cut is whole")
	}
}

// FuzzReport: whatever a guest writes, it speaks of known needs only.
func FuzzReport(f *testing.F) {
	f.Add("turnstone-agent: check has erofs\r\nturnstone-agent: check lacks tun\nturnstone-agent: check ends\r\n")
	f.Fuzz(func(t *testing.T, text string) {
		has, _ := Report(text)
		for name := range has {
			if _, known := need.Of(name); !known {
				t.Errorf("the need %q", name)
			}
		}
	})
}
