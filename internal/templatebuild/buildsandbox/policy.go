package buildsandbox

import (
	"errors"
	"net"
	"slices"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/netplan"
	"turnstone.dev/turnstone/internal/network"
)

// policy returns the network policy of a build, which allows its package registries at port, and
// the hosts in its spec. The host's policy for turns restricts the hosts in the spec too.
func policy(host netplan.Host, allow []string, port net.Addr) (network.Policy, error) {
	if host.Locked && host.Default == "off" && len(allow) > 0 {
		return network.Policy{Only: true},
			netplan.Locked("network: "+allow[0], errors.New("the host's policy is off"))
	}
	// A build must name public addresses individually.
	public := func(rule string) bool { return rule == network.PublicWord }
	allow = slices.DeleteFunc(slices.Clone(allow), public)
	policy, err := host.Judging(turnstone.NetworkSpec{Allow: allow, Only: true})
	if err != nil || port == nil {
		return policy, err
	}
	own, err := network.ParseRule(port.String())
	if err != nil {
		return policy, err
	}
	// A host that denies its loopback means its own services, and not this server.
	policy.Own = []network.Rule{own}
	return policy, policy.Validate()
}
