package hostcmd

import (
	"context"
	"fmt"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/channel/attest"
	"turnstone.dev/turnstone/internal/proof/key"
	"turnstone.dev/turnstone/internal/remote"
	"turnstone.dev/turnstone/internal/remote/hosts"
)

// certified makes h a host of the root that the user named, or keeps its root, and notes what nodes show
// that the root certified: one of them at least. l is the list that h will be in.
func (c *addCmd) certified(ctx context.Context, s hosts.Store, l *hosts.List, address remote.Address,
	h *hosts.Host, nodes []NodeReport) error {
	trust, err := key.Ring{Dir: s.Dir}.List()
	if err != nil {
		return err
	}
	var shown []*attest.Chain
	var names []NodeReport
	var refused []string
	refuse := func(n NodeReport, err error) {
		refused = append(refused, fmt.Sprintf("node %s: %v", n.Name, err))
	}
	for _, n := range nodes {
		chain, err := n.chain(ctx, trust)
		if err != nil {
			refuse(n, err)
			continue
		}
		shown, names = append(shown, chain), append(names, n)
	}
	root, err := c.root(h, shown)
	if err != nil {
		return err
	}
	if root == "" {
		refused = append(refused, others(names, shown)...)
		return c.uncertified(address, c.Root, refused)
	}
	l.SetRoot(h, root)
	good := 0
	for i, chain := range shown {
		err := hosts.CheckRevoked(trust, chain, h.Root.Key)
		if err == nil {
			_, err = l.Learn(h, chain, time.Now())
		}
		if err != nil {
			refuse(names[i], err)
			continue
		}
		good++
	}
	if good == 0 {
		return c.uncertified(address, h.Root.ID(), refused)
	}
	return nil
}

// chain returns what a node shows, if it is about the node's name and key, and the user has not revoked
// the key.
func (n NodeReport) chain(ctx context.Context, trust *key.Trust) (*attest.Chain, error) {
	if len(n.shown) == 0 {
		return nil, turnstone.Errorf("root.verify", turnstone.KindIntegrity, "",
			"it shows no certificate")
	}
	chain, err := attest.OpenChain(ctx, n.shown)
	if err != nil {
		return nil, err
	}
	k, err := key.Parse(n.Public)
	if err != nil {
		return nil, err
	}
	if trust.Revoked(k.ID()) {
		return nil, fmt.Errorf("its key %w", key.ErrRevoked)
	}
	return chain, chain.CheckNode(n.Name, k)
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
		"has no node with a valid certificate of the root %.200s: %s", root, some(refused)).
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
	var all []string
	if h.Root != nil {
		all = append(all, h.Root.Former...)
	}
	for _, chain := range shown {
		all = append(all, chain.Roots()...)
	}
	for _, text := range all {
		if k, err := key.Parse(text); err == nil && k.ID() == named {
			return text, nil
		}
	}
	return "", nil
}
