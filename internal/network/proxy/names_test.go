package proxy

import (
	"testing"
	"time"

	"turnstone.dev/turnstone/internal/network"
	"turnstone.dev/turnstone/internal/network/networktest"
	"turnstone.dev/turnstone/internal/network/recording"
)

// TestDeniedNameInARequest checks that a denied name is refused in each request, also on a
// connection to an address without a known name.
func TestDeniedNameInARequest(t *testing.T) {
	plain, _ := testServer(t, false)
	rec, _ := recordInto(t, recording.Options{})
	web := at("", "192.0.2.2:80", plain)
	p := newProxied(t, Options{Recorder: rec}, web)
	j := network.NewJudge(network.Policy{Deny: networktest.Rules(t, "bad.example",
		"*.bad.example:80", "other.example:81")}, networktest.NoneOwn)
	p.request = func(host string) string {
		return j.Check(web.to, nil).Request(host,
			network.NewNames(1, time.Hour))
	}
	c := p.connect(web)
	networktest.Answers(t, c, []networktest.Answer{{Host: "good.example", Want: 200},
		{Host: "bad.example", Want: 403}, {Host: "good.example", Want: 200},
		{Host: "A.Bad.Example.:80", Want: 403}, {Host: "other.example", Want: 200}})
}
