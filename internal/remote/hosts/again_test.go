package hosts_test

import (
	"testing"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/remote/hosts"
)

// TestListAgain: a process that stays follows the list of hosts: a pin that is added counts for the next
// channel, and one that is removed no longer.
func TestListAgain(t *testing.T) {
	s := newScene(t)
	s.set(t, nodeOne, nil)
	server, err := s.client.Server(t.Context(), "work")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	trusts := func(want bool) {
		t.Helper()
		_, err := server.NodeChannel(t.Context(), "n1")
		if got := turnstone.KindOf(err) != turnstone.KindIntegrity; got != want {
			t.Errorf("the node is trusted: %v: %v", got, err)
		}
		why, err := server.Distrusts(t.Context(), &v1.Node{Name: "n1", Key: signer(t, nodeOne).String()})
		if err != nil || (why == "") != want {
			t.Errorf("the node is not trusted because %q: %v", why, err)
		}
	}
	set := func(pin byte) {
		t.Helper()
		if err := s.store.Change(t.Context(), func(l *hosts.List) error {
			h := l.Hosts["work"]
			h.Root, h.Nodes = nil, map[string][]string{"n1": {signer(t, pin).String()}}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	trusts(false)
	set(nodeOne)
	trusts(true)
	set(nodeTwo)
	trusts(false)
	if why, err := server.Distrusts(t.Context(), &v1.Node{Name: "n1"}); why == "" || err != nil {
		t.Errorf("a node without a key is trusted: %v", err)
	}
}
