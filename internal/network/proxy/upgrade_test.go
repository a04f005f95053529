package proxy

import (
	"testing"
)

// TestUpgradesThatHideRequests checks that no spelling of an Upgrade header hides a protocol that
// hides requests.
func TestUpgradesThatHideRequests(t *testing.T) {
	for upgrade, want := range map[string]bool{"websocket": false, "echo, x": false, "h2c": true,
		"websocket h2c": true, "websocket;H2C": true, "websocket,\tTLS/1.0": true,
		"websocket/13 HTTP/2": true} {
		if hidesRequests(upgrade) != want {
			t.Errorf("%q: %v", upgrade, !want)
		}
	}
}
