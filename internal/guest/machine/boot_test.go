package machine

import (
	"testing"
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
