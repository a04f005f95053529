package hostcmd

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/channel/attest"
	"turnstone.dev/turnstone/internal/proof/key"
	"turnstone.dev/turnstone/internal/remote"
	"turnstone.dev/turnstone/internal/remote/hosts"
)

// certified makes h a host of the root that the user named, or keeps its root. It returns what the
// nodes show that the root certified: one of them at least.
func (c *addCmd) certified(ctx context.Context, s hosts.Store, address remote.Address, h *hosts.Host,
	nodes []NodeReport) ([]*attest.Chain, error) {
	var shown []*attest.Chain
	var names []NodeReport
	var refused []string
	refuse := func(n NodeReport, err error) {
		refused = append(refused, fmt.Sprintf("node %s: %v", n.Name, err))
	}
	for _, n := range nodes {
		chain, err := attest.OpenChain(ctx, n.shown)
		if len(n.shown) == 0 {
			err = turnstone.Errorf("root.verify", turnstone.KindIntegrity, "", "it shows no certificate")
		}
		if err == nil {
			var k key.Public
			if k, err = key.Parse(n.Public); err == nil {
				err = chain.CheckNode(n.Name, k)
			}
		}
		if err != nil {
			refuse(n, err)
			continue
		}
		shown, names = append(shown, chain), append(names, n)
	}
	root, err := c.root(h, shown)
	if err != nil {
		return nil, err
	}
	list, err := s.Load()
	if err != nil {
		return nil, err
	}
	if root == "" {
		refused = append(refused, others(names, shown)...)
		return nil, c.uncertified(address, c.Root, refused)
	}
	list.SetRoot(h, root)
	var good []*attest.Chain
	for i, chain := range shown {
		if _, err := list.Learn(h, chain, time.Now()); err != nil {
			refuse(names[i], err)
			continue
		}
		good = append(good, chain)
	}
	if len(good) == 0 {
		return nil, c.uncertified(address, h.Root.ID(), refused)
	}
	return good, nil
}

// others says which roots certified the nodes.
func others(nodes []NodeReport, shown []*attest.Chain) (all []string) {
	for i, chain := range shown {
		if k, err := key.Parse(chain.Signer); err == nil {
			all = append(all, fmt.Sprintf("node %s: its root is %s", nodes[i].Name, k.ID()))
		}
	}
	return all
}

func (c *addCmd) uncertified(address remote.Address, root string, refused []string) error {
	return channel.Fail("host.add", attest.FaultUncertified, address.String(),
		"has no node with a valid certificate of the root %.200s: %s", root,
		strings.Join(refused, "; ")).
		WithHint("ask the server's operator for the root's fingerprint and for certificates of the " +
			"nodes: turn host root show")
}

// root returns the root that the user named, as "TYPE BASE64", or that of the host. A fingerprint is
// that of a root in one of the chains; "" if none has it.
func (c *addCmd) root(h *hosts.Host, shown []*attest.Chain) (string, error) {
	named := strings.TrimSpace(c.Root)
	switch {
	case named == "":
		return h.Root.Key, nil
	case !strings.HasPrefix(named, "SHA256:"):
		k, err := publicKey(named)
		if err != nil {
			return "", err
		}
		return k.String(), nil
	}
	for _, chain := range shown {
		for _, text := range chain.Roots() {
			if k, err := key.Parse(text); err == nil && k.ID() == named {
				return text, nil
			}
		}
	}
	return "", nil
}

// learn notes in a list what the nodes of h showed. Another process may have seen later
// certificates since.
func learn(l *hosts.List, h *hosts.Host, shown []*attest.Chain) error {
	if h.Root == nil {
		return nil
	}
	l.SetRoot(h, h.Root.Key)
	for _, chain := range slices.Backward(shown) {
		if _, err := l.Learn(h, chain, time.Now()); err != nil &&
			channel.FaultOf(err) != attest.FaultOldEpoch {
			return err
		}
	}
	return nil
}
