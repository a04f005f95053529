package machine

import (
	"strings"
	"testing"

	"turnstone.dev/turnstone/wire"
)

func TestParams(t *testing.T) {
	p := parseParams("console=ttyS0 turnstone.scratch=scr " +
		"turnstone.net=10.0.2.15/24,10.0.2.2,10.0.2.3,1.1.1.1 x\n")
	if p.scratch != "scr" || p.network == nil || p.network.Gateway != "10.0.2.2" ||
		len(p.network.DNS) != 2 {
		t.Errorf("%+v %+v", p, p.network)
	}
	if p := parseParams("turnstone.net=10.0.2.15/24"); p.network != nil || p.scratch != "" {
		t.Errorf("%+v", p)
	}
}

// TestClocks checks that only a deterministic machine may have a clock long ago.
func TestClocks(t *testing.T) {
	p := wire.SandboxConfigureParams{Entropy: make([]byte, 32), Time: "1971-02-03T04:05:06Z",
		Hostname: "turn", MachineID: strings.Repeat("0", 32), Scratch: "scratch"}
	if _, err := checkConfigure(&p); err == nil {
		t.Error("a host's clock of 1971 is accepted")
	}
	p.Deterministic = true
	if now, err := checkConfigure(&p); err != nil || now.Year() != 1971 {
		t.Errorf("%v, %v", now, err)
	}
}
