package hostcmd

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	"connectrpc.com/connect"
	"golang.org/x/term"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/proof/key"
	"turnstone.dev/turnstone/internal/remote"
	"turnstone.dev/turnstone/internal/remote/hosts"
	"turnstone.dev/turnstone/internal/terminal"
)

type addCmd struct {
	Name      string   `arg:"" help:"Name of the host, for turn host use."`
	URL       string   `arg:"" help:"Address: https://…, http://LOOPBACK or unix:PATH."`
	Pin       []string `help:"Trust nodes with this fingerprint or key (repeatable)." placeholder:"SHA256:…" sep:"none"`
	Root      string   `help:"Trust the nodes that this root (or FILE) certified." placeholder:"SHA256:…"`
	TokenFile string   `help:"Read the token from FILE; - stores standard input." placeholder:"FILE"`
	Use       bool     `help:"Also select the host for later commands."`
	JSON      bool     `name:"json" help:"Print JSON."`
}

// Help is shown below the flags' summary.
func (c *addCmd) Help() string {
	return `The server is asked for its nodes, whose keys sign what the client relies on. Compare
each fingerprint with the operator of the node, where turn key ls prints the
key: whoever stands between you and the node could show another one. Without --pin,
turn asks on a terminal, and refuses without one.

--root trusts the operator's root in place of single nodes: every node with a valid
certificate of it (turn host root), also one that is added later or has a new key.

For a host that is known already, new nodes are added, and a node with another key
than before is refused unless --pin names its new key.

The token is read from its file for each call; mode 0600. TURN_TOKEN wins. Without
a token file, a token in TURN_TOKEN is used and not stored.`
}

// Examples returns command lines for the help.
func (c *addCmd) Examples() []string {
	return []string{
		"turn host add work https://turn.example.org --token-file work.token",
		"turn host add fleet https://fleet.example.org --root root.pub",
		"turn host add ci $URL --pin SHA256:uUGyLs3zBOnBK1ONAHBtP7b1FSZQTqLPLJHCXbLbHRg",
	}
}

// Validate is called by kong.
func (c *addCmd) Validate() error {
	if c.Root != "" && len(c.Pin) > 0 {
		return errors.New("--root and --pin cannot be used together")
	}
	for i, pin := range c.Pin {
		id, err := fingerprint(pin)
		if err != nil {
			return err
		}
		c.Pin[i] = id
	}
	return nil
}

// fingerprint returns the fingerprint that --pin names: itself, or a public key, as turn key show --pub prints it.
func fingerprint(pin string) (string, error) {
	pin = strings.TrimSpace(pin)
	if key.IsID(pin) {
		return pin, nil
	}
	if key.IsPublic(pin) {
		p, _, err := key.ParsePublic(pin)
		if err != nil {
			return "", fmt.Errorf("--pin: %w", err)
		}
		return p.ID(), nil
	}
	return "", fmt.Errorf("--pin: %.80q is no fingerprint: write SHA256:… as turn key ls prints it on the node", pin)
}

// Run adds the host.
func (c *addCmd) Run(a *cli.App) error {
	return a.Do(func(ctx context.Context) error {
		if err := hosts.CheckName(c.Name); err != nil {
			return err
		}
		address, err := remote.ParseAddress(c.URL)
		if err != nil {
			return err
		}
		s, err := store(a)
		if err != nil {
			return err
		}
		list, err := s.Load()
		if err != nil {
			return err
		}
		h, err := c.known(list, address)
		if err != nil {
			return err
		}
		file, err := tokenFile(a, s, c.Name, c.TokenFile)
		if err != nil {
			return err
		}
		h.TokenFile = cmp.Or(file, h.TokenFile)
		nodes, own, err := c.nodes(ctx, a, address, h)
		rooted := c.Root != "" || h.Root != nil
		if err == nil && !rooted && (!own || len(c.Pin) > 0) {
			err = c.accept(a, address, h, nodes)
		}
		if err == nil {
			err = s.Change(ctx, func(l *hosts.List) error {
				return c.store(ctx, s, l, address, h, nodes, list.Hosts[c.Name])
			})
		}
		if err != nil {
			if c.TokenFile == "-" {
				_ = s.Forget(&hosts.Host{TokenFile: file})
			}
			return err
		}
		return c.added(a, s)
	})
}

// store adds the host to a list. Another process may have changed the list since the server was asked,
// such as by a later certificate: what it says of a root is as it is now, and with pins it must be as
// the user has seen it.
func (c *addCmd) store(ctx context.Context, s hosts.Store, l *hosts.List, address remote.Address,
	h *hosts.Host, nodes []NodeReport, seen *hosts.Host) error {
	now := l.Hosts[c.Name]
	if c.Root == "" && h.Root == nil && !reflect.DeepEqual(now, seen) ||
		c.Root == "" && h.Root != nil && (now == nil || now.Root == nil) {
		return turnstone.Errorf("host.add", turnstone.KindUnavailable, "host "+c.Name,
			"was changed by another process").WithHint("repeat the command")
	}
	if c.Root != "" || h.Root != nil {
		fresh, err := c.known(l, address)
		if err != nil {
			return err
		}
		h.Root = fresh.Root
		if err := c.certified(ctx, s, l, address, h, nodes); err != nil {
			return err
		}
	}
	l.Hosts[c.Name] = h
	if c.Use {
		l.Current = c.Name
	}
	return nil
}

// added prints the host.
func (c *addCmd) added(a *cli.App, s hosts.Store) error {
	current, err := a.CurrentHost()
	if err != nil {
		return err
	}
	list, err := s.Load()
	if err != nil {
		return err
	}
	_, h, err := list.Find(c.Name)
	if err != nil {
		return err
	}
	rep, err := report(c.Name, h, current)
	return a.Result(rep, err, func(w io.Writer) {
		if rep.Root != nil {
			terminal.Println(w, c.Name+": root "+rep.Root.Key)
		}
		for _, n := range rep.Nodes {
			terminal.Println(w, c.Name+": node "+n.line())
		}
		if !rep.Current {
			terminal.Println(w, "turn host use "+c.Name+" selects it")
		}
	})
}

// known returns a copy of the host of this name, or a new one.
func (c *addCmd) known(list *hosts.List, address remote.Address) (*hosts.Host, error) {
	h := &hosts.Host{URL: address.String(), Nodes: map[string][]string{}}
	old := list.Hosts[c.Name]
	if old == nil {
		return h, nil
	}
	if old.URL != h.URL {
		return nil, turnstone.Errorf("host.add", turnstone.KindInvalid, "host "+c.Name,
			"is %s already", old.URL).
			WithHint("choose another name, or remove it with turn host rm " + c.Name)
	}
	h.TokenFile = old.TokenFile
	if old.Root != nil {
		root := *old.Root
		root.Nodes = slices.Clone(root.Nodes)
		h.Root = &root
		if len(c.Pin) > 0 {
			return nil, turnstone.Errorf("host.add", turnstone.KindInvalid, "host "+c.Name,
				"trusts nodes by the root %s", root.ID()).
				WithHint("remove it with turn host rm " + c.Name + " to pin nodes in place of the root")
		}
	}
	for node, keys := range old.Nodes {
		h.Nodes[node] = slices.Clone(keys)
	}
	return h, nil
}

// nodes asks the server for its nodes. What it answers is not believed yet, except over a socket of
// this user.
func (c *addCmd) nodes(ctx context.Context, a *cli.App, address remote.Address, h *hosts.Host) (
	nodes []NodeReport, own bool, err error) {
	server, own, err := a.Unpinned(ctx, address, h)
	if err != nil {
		return nil, false, err
	}
	defer func() { _ = server.Close() }()
	answer, err := server.Server.ListNodes(ctx, connect.NewRequest(&v1.ListNodesRequest{}))
	if err != nil {
		return nil, false, err
	}
	for _, n := range answer.Msg.Nodes {
		k, err := key.Parse(n.Key)
		if err == nil {
			err = turnstone.CheckName("node", n.Name)
		}
		if err != nil {
			return nil, false, turnstone.NewError("host.add", turnstone.KindIntegrity, address.String(), err)
		}
		nodes = append(nodes, NodeReport{Name: n.Name, Key: k.ID(), Public: n.Key,
			shown: n.Certificate})
	}
	if len(nodes) == 0 {
		return nil, false, turnstone.Errorf("host.add", turnstone.KindUnavailable, address.String(),
			"has no node that runs").WithHint("start a node: turn serve --role node")
	}
	return nodes, own, nil
}

// accept adds the nodes that the user trusts to h.
func (c *addCmd) accept(a *cli.App, address remote.Address, h *hosts.Host,
	nodes []NodeReport) error {
	if len(c.Pin) > 0 {
		return c.pinned(address, h, nodes)
	}
	var unknown []NodeReport
	for _, n := range nodes {
		switch keys := h.Nodes[n.Name]; {
		case slices.Contains(keys, n.Public):
		case len(keys) > 0:
			return turnstone.Errorf("host.add", turnstone.KindIntegrity, address.String(),
				"node %s shows another key than before: %s. Its key was replaced, or somebody stands "+
					"between you and the node", n.Name, n.Key).
				WithHint("ask the node's operator for its fingerprint, and name it with --pin")
		default:
			unknown = append(unknown, n)
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	if err := c.ask(a, address, unknown); err != nil {
		return err
	}
	for _, n := range unknown {
		h.Nodes[n.Name] = []string{n.Public}
	}
	return nil
}

// pinned adds the nodes whose fingerprints the user named; they replace older keys.
func (c *addCmd) pinned(address remote.Address, h *hosts.Host, nodes []NodeReport) error {
	var missing []string
	for _, pin := range c.Pin {
		found := false
		for _, n := range nodes {
			if n.Key == pin {
				h.Nodes[n.Name], found = []string{n.Public}, true
			}
		}
		if !found {
			missing = append(missing, pin)
		}
	}
	if len(missing) > 0 {
		return turnstone.Errorf("host.add", turnstone.KindIntegrity, address.String(),
			"has no node with the key %.200s: %s", strings.Join(missing, ", "), fingerprints(nodes)).
			WithHint("do not use this server before you know why its nodes have other keys")
	}
	return nil
}

// ask shows the fingerprints, and asks for the user's trust.
func (c *addCmd) ask(a *cli.App, address remote.Address, nodes []NodeReport) error {
	refused := turnstone.Errorf("host.add", turnstone.KindInvalid, address.String(),
		"its nodes are not trusted yet: %s", fingerprints(nodes)).
		WithHint("compare each with turn key ls on its machine, and name it with --pin")
	if !term.IsTerminal(int(a.Stdin.Fd())) || c.TokenFile == "-" {
		return refused
	}
	terminal.Println(a.Stderr, "The authenticity of "+address.String()+" cannot be established.")
	for _, n := range nodes {
		terminal.Println(a.Stderr, "node "+n.Name+" has the key "+n.Key)
	}
	terminal.Printf(a.Stderr, "Trust these keys? (yes/no) ")
	lines := bufio.NewReader(io.LimitReader(a.Stdin, 1<<10))
	for {
		answer, err := lines.ReadString('\n')
		switch strings.TrimSpace(answer) {
		case "yes":
			return nil
		case "no":
			return refused
		}
		if err != nil {
			return refused
		}
		terminal.Printf(a.Stderr, "Write yes or no: ") // as ssh asks again after y
	}
}
