package controller

import (
	"net/http"
	"testing"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	connectv1 "turnstone.dev/turnstone/internal/api/turnstone/v1/turnstonev1connect"
	"turnstone.dev/turnstone/internal/server/controller/guard"
)

// TestAddressOfNode: a node that registers over the network is on the network. Otherwise a node's
// certificate would connect gateway and controller to sockets of their own machine's user.
func TestAddressOfNode(t *testing.T) {
	w := newWorld(t)
	for _, far := range []bool{false, true} {
		h := w.Peers()
		if far {
			h = guard.FromNetwork(h)
		}
		c := connectv1.NewControllerServiceClient(&http.Client{Transport: direct{h}},
			"http://controller", api.ClientOptions()...)
		for address, network := range map[string]bool{"127.0.0.2:1": true, "[::1]:1": true,
			"localhost:1": true, "memory:": false, "unix:/run/server.sock": false,
			"unix:7421": false, "unix:7421/../x": false, "127.0.0.2": false, ":7421": false,
			"127.0.0.2:0": false, "127.0.0.2:https": false, "127.0.0.2:99999": false} {
			_, err := c.RegisterNode(t.Context(), connect.NewRequest(&v1.RegisterNodeRequest{
				Node: newFakeNode(t, "n1").node(), Address: address}))
			if far && !network {
				if e := api.FromConnect(err); turnstone.KindOf(e) != turnstone.KindInvalid ||
					turnstone.HintOf(e) == "" {
					t.Errorf("%s: %v", address, err)
				}
			} else if err != nil {
				t.Errorf("%s, over the network %v: %v", address, far, err)
			}
		}
	}
}
