package hosts_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/channel/attest"
	"turnstone.dev/turnstone/internal/proof/key"
	"turnstone.dev/turnstone/internal/remote/hosts"
)

// hop is a succession of roots.
type hop struct {
	from, to byte
	epoch    uint64
}

// via adds successions to a certificate.
func via(t testing.TB, chain []byte, hops ...hop) *attest.Chain {
	t.Helper()
	var all [][]byte
	for _, h := range hops {
		s, err := attest.SignSuccession(t.Context(), attest.Succession{Next: signer(t, h.to).String(),
			Epoch: h.epoch, Time: time.Now()}, signer(t, h.from))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	c, err := attest.OpenChain(t.Context(), attest.JoinChain(bytes.TrimSuffix(chain, []byte("\n")), all))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestKnowledge: what a client has seen of a root through one host counts for all others, also if the
// user names a root that another one has replaced.
func TestKnowledge(t *testing.T) {
	text := func(seed byte) string { return signer(t, seed).String() }
	const rootThree = 13
	type pins map[string]hosts.Root
	for what, tc := range map[string]struct {
		known pins // b is the host that shows the chain
		chain *attest.Chain
		fault channel.Fault
		after pins
	}{
		"another host has seen a later epoch of the new root": {
			pins{"a": {Key: text(rootTwo), Epoch: 9}, "b": {Key: text(rootOne), Epoch: 1}},
			via(t, cert(t, rootTwo, nodeOne, 5), hop{rootOne, rootTwo, 5}), attest.FaultOldEpoch,
			pins{"a": {Key: text(rootTwo), Epoch: 9}, "b": {Key: text(rootOne), Epoch: 1}}},
		"another host has seen a later epoch of a root between": {
			pins{"a": {Key: text(rootTwo), Epoch: 7}, "b": {Key: text(rootOne), Epoch: 1}},
			via(t, cert(t, rootThree, nodeOne, 6), hop{rootOne, rootTwo, 5}, hop{rootTwo, rootThree, 6}),
			attest.FaultOldEpoch,
			pins{"a": {Key: text(rootTwo), Epoch: 7}, "b": {Key: text(rootOne), Epoch: 1}}},
		"a root between moves too": {
			pins{"a": {Key: text(rootTwo), Epoch: 5}, "b": {Key: text(rootOne), Epoch: 1}},
			via(t, cert(t, rootThree, nodeOne, 6), hop{rootOne, rootTwo, 5}, hop{rootTwo, rootThree, 6}),
			"", pins{"a": {Key: text(rootThree), Epoch: 6, Former: []string{text(rootTwo)}},
				"b": {Key: text(rootThree), Epoch: 6, Former: []string{text(rootOne), text(rootTwo)}}}},
		"another host has followed": {
			pins{"a": {Key: text(rootTwo), Epoch: 5, Former: []string{text(rootOne)}},
				"b": {Key: text(rootOne), Epoch: 1}},
			via(t, cert(t, rootOne, nodeOne, 4)), attest.FaultOtherRoot,
			pins{"a": {Key: text(rootTwo), Epoch: 5, Former: []string{text(rootOne)}},
				"b": {Key: text(rootTwo), Epoch: 5, Former: []string{text(rootOne)}}}},
		"a root that comes back": {
			pins{"b": {Key: text(rootTwo), Epoch: 5, Former: []string{text(rootOne)}}},
			via(t, cert(t, rootOne, nodeOne, 9), hop{rootTwo, rootOne, 9}), attest.FaultOtherRoot,
			pins{"b": {Key: text(rootTwo), Epoch: 5, Former: []string{text(rootOne)}}}},
		"a root that comes back for another host": {
			pins{"a": {Key: text(rootTwo), Epoch: 5, Former: []string{text(rootOne)}},
				"b": {Key: text(rootThree), Epoch: 1}},
			via(t, cert(t, rootOne, nodeOne, 9), hop{rootThree, rootTwo, 8}, hop{rootTwo, rootOne, 9}),
			attest.FaultOtherRoot,
			pins{"a": {Key: text(rootTwo), Epoch: 5, Former: []string{text(rootOne)}},
				"b": {Key: text(rootThree), Epoch: 1}}},
	} {
		l := &hosts.List{Hosts: map[string]*hosts.Host{}}
		for name, r := range tc.known {
			r.Former = slices.Clone(r.Former)
			l.Hosts[name] = &hosts.Host{URL: "https://" + name, Root: &r}
		}
		_, err := l.Learn(l.Hosts["b"], tc.chain, time.Now())
		if channel.FaultOf(err) != tc.fault {
			t.Errorf("%s: %v", what, err)
		}
		for name, want := range tc.after {
			if r := l.Hosts[name].Root; r.Key != want.Key || r.Epoch != want.Epoch ||
				!slices.Equal(r.Former, want.Former) {
				t.Errorf("%s: %s has %+v", what, name, r)
			}
		}
		if _, err := l.Encode(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestSetFormerRoot: who names a root that was replaced gets what replaced it, for a known host and for
// a new one.
func TestSetFormerRoot(t *testing.T) {
	known := &hosts.Host{URL: "https://a", Root: &hosts.Root{Key: two, Epoch: 7, Former: []string{one}}}
	l := &hosts.List{Hosts: map[string]*hosts.Host{"a": known}}
	fresh := &hosts.Host{URL: "https://b"}
	for _, h := range []*hosts.Host{known, fresh} {
		l.SetRoot(h, one)
		if h.Root.Key != two || h.Root.Epoch != 7 || !slices.Equal(h.Root.Former, []string{one}) {
			t.Error(h.Root)
		}
	}
	text, err := l.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for _, change := range [][2]string{{"former = [\"" + one, "former = [\"x"},
		{"former = [\"" + one, "former = [\"" + two}} {
		if damaged := strings.Replace(string(text), change[0], change[1], 1); damaged == string(text) {
			t.Fatal(damaged)
		} else if _, err := hosts.Parse(damaged); err == nil {
			t.Errorf("%q in place of %q is a list", change[1], change[0])
		}
	}
	// roots that replace each other, as no client writes them
	l.Hosts["b"] = &hosts.Host{URL: "https://b", Root: &hosts.Root{Key: one, Former: []string{two}}}
	l.SetRoot(known, one)
}

// TestFormerRootRevoked: a root that the user revokes after the client has followed it is in the chain
// of its successors, and does not matter there.
func TestFormerRootRevoked(t *testing.T) {
	s := newScene(t)
	chain := followed(t, cert(t, rootTwo, nodeOne, 4), 4)
	s.set(t, nodeOne, chain)
	if err := s.connect(t, false); err != nil {
		t.Fatal(err)
	}
	revoke := func(root byte) {
		t.Helper()
		if _, err := (key.Ring{Dir: s.store.Dir}).Revoke(t.Context(), signer(t, root).ID()); err != nil {
			t.Fatal(err)
		}
	}
	revoke(rootOne)
	if err := s.connect(t, false); err != nil {
		t.Error(err)
	}
	revoke(rootTwo)
	if err := s.connect(t, false); channel.FaultOf(err) != attest.FaultRootRevoked {
		t.Error(err)
	}

	s = newScene(t) // a client that has not followed yet
	s.set(t, nodeOne, chain)
	revoke(rootOne)
	if err := s.connect(t, false); channel.FaultOf(err) != attest.FaultRootRevoked {
		t.Error(err)
	}
}

// TestEncodeBounds: what is stored can be read again.
func TestEncodeBounds(t *testing.T) {
	l := &hosts.List{Hosts: map[string]*hosts.Host{}}
	for i := range 100 {
		h := &hosts.Host{URL: fmt.Sprintf("https://h%d", i), Nodes: map[string][]string{}}
		for j := range 256 {
			h.Nodes[fmt.Sprintf("n%d", j)] = []string{one}
		}
		l.Hosts[fmt.Sprintf("h%d", i)] = h
	}
	if b, err := l.Encode(); err == nil {
		_, err := hosts.Parse(string(b))
		t.Errorf("%d bytes were stored: %v", len(b), err)
	}
	both := &hosts.List{Hosts: map[string]*hosts.Host{"a": {URL: "https://a",
		Nodes: map[string][]string{"n1": {two}}, Root: &hosts.Root{Key: one}}}}
	if _, err := both.Encode(); err == nil {
		t.Error("a pin counts beside a root")
	}
}
