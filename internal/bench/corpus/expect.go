package corpus

import "turnstone.dev/turnstone"

// The reasons why programs differ under the seeded tier.
const (
	tsc  = "reads the processor's time stamp counter"
	spin = "computes until another thread stops it: how far it comes depends on the processor"
	log  = "reads the kernel's log, in which gVisor writes random messages"
	lo   = "waits for packets on the loopback interface, which take real time on a busy host"
)

// expected has the reason why a program's results may differ between two runs under a tier.
// Programs that are not listed have to be equal.
var expected = map[turnstone.Tier]map[string]string{
	turnstone.TierSeeded: {
		"gcc-tsc":    tsc,
		"race-spin":  spin,
		"kernel-log": log,
		"py-server":  lo, "py-sockets": lo, "node-server": lo,
	},
	turnstone.TierStrict: {},
}

// Reason returns why the results of a program may differ under tier, and whether they may.
func Reason(tier turnstone.Tier, program string) (string, bool) {
	reason, ok := expected[tier][program]
	return reason, ok
}
