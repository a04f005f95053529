// Package hostcmd has the commands about servers: the hosts that a client knows, and their tokens.
package hostcmd

import (
	"context"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/proof/key"
	"turnstone.dev/turnstone/internal/remote/hosts"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/terminal"
)

// HostCmd has the commands below turn host.
type HostCmd struct {
	Add  addCmd  `cmd:"" help:"Add a server, and trust the keys of its nodes."`
	Ls   lsCmd   `cmd:"" help:"List the servers that turn knows."`
	Use  useCmd  `cmd:"" help:"Select the server for later commands."`
	Show showCmd `cmd:"" help:"Show a server and its trusted keys."`
	Rm   rmCmd   `cmd:"" help:"Remove a server and its token."`
	Root rootCmd `cmd:"" help:"Certify the nodes of your own servers."`
	Key  keyCmd  `cmd:"" help:"Print this client's public key, for turn session allow."`
	Seal sealCmd `cmd:"" help:"Seal your sessions at a server with a key of your own."`
}

// store returns the hosts of the state directory, which it creates.
func store(a *cli.App) (hosts.Store, error) {
	dir, err := a.StateDir()
	return hosts.Store{Dir: dir}, err
}

// known returns the hosts of the state directory, for a command that changes nothing: it need not
// exist.
func known(a *cli.App) (hosts.Store, error) {
	dir, err := a.Locate()
	return hosts.Store{Dir: &statedir.Dir{Root: dir}}, err
}

// A HostReport is a server that turn knows.
type HostReport struct {
	Name      string `json:"name"`
	URL       string `json:"url"`
	Current   bool   `json:"current"`
	TokenFile string `json:"token_file"` // empty: none
	// SealFile has the key that seals this client's sessions there, if it sends one.
	SealFile string `json:"seal_file,omitempty"`
	// Root is the operator's root, which certifies nodes, if the client trusts one.
	Root  *HostRootReport `json:"root,omitempty"`
	Nodes []NodeReport    `json:"nodes"`
}

// A NodeReport is a node of a server with a key that is trusted.
type NodeReport struct {
	Name   string `json:"name"`
	Key    string `json:"key"` // its fingerprint
	Public string `json:"public"`
	// Expires is the end of the certificate by which the key is trusted; none: the key is pinned.
	Expires time.Time `json:"expires,omitzero"`

	shown []byte // untrusted: its certificate
}

// line describes the node with the key that is trusted.
func (n NodeReport) line() string {
	line := n.Key
	if n.Name != "" {
		line = n.Name + " " + n.Key
	}
	if !n.Expires.IsZero() {
		line += " certified until " + n.Expires.Format(time.RFC3339)
	}
	return line
}

// A HostRootReport is an operator's root as a client knows it.
type HostRootReport struct {
	Key    string `json:"key"` // its fingerprint
	Public string `json:"public"`
	Epoch  uint64 `json:"epoch"` // the latest that this client saw
}

// A HostsReport is the output of turn host ls.
type HostsReport struct {
	Current string       `json:"current"` // name, address, "auto" or "local"
	Hosts   []HostReport `json:"hosts"`
}

func report(name string, h *hosts.Host, current string) (HostReport, error) {
	r := HostReport{Name: name, URL: h.URL, TokenFile: h.TokenFile, SealFile: h.SealFile,
		Nodes: []NodeReport{}, Current: current == name || current == h.URL}
	for _, node := range slices.Sorted(maps.Keys(h.Nodes)) {
		for _, text := range h.Nodes[node] {
			k, err := key.Parse(text)
			if err != nil {
				return r, err
			}
			r.Nodes = append(r.Nodes, NodeReport{Name: node, Key: k.ID(), Public: text})
		}
	}
	if h.Root == nil {
		return r, nil
	}
	r.Root = &HostRootReport{h.Root.ID(), h.Root.Key, h.Root.Epoch}
	certified, err := h.Root.Entries()
	for _, e := range certified {
		r.Nodes = append(r.Nodes, NodeReport{Name: e.Name, Key: e.Key.ID(),
			Public: e.Key.String(), Expires: e.Before})
	}
	if err != nil {
		return r, err
	}
	return r, nil
}

type lsCmd struct {
	JSON bool `name:"json" help:"Print JSON."`
}

// Run lists the hosts.
func (c *lsCmd) Run(a *cli.App) error {
	return a.Do(func(context.Context) error {
		s, err := known(a)
		if err != nil {
			return err
		}
		list, err := s.Load()
		if err != nil {
			return err
		}
		rep := HostsReport{Hosts: []HostReport{}}
		if rep.Current, err = a.CurrentHost(); err != nil {
			return err
		}
		for _, name := range slices.Sorted(maps.Keys(list.Hosts)) {
			one, err := report(name, list.Hosts[name], rep.Current)
			if err != nil {
				return err
			}
			rep.Hosts = append(rep.Hosts, one)
		}
		return a.Result(rep, nil, func(w io.Writer) {
			terminal.List(w, false, "NAME\tURL\tNODES\tROOT\tTOKEN\tCURRENT", rep.Hosts,
				func(h HostReport) []any {
					root := ""
					if h.Root != nil {
						root = h.Root.Key
					}
					return []any{h.Name, h.URL, len(h.Nodes), root, yes(h.TokenFile != ""),
						yes(h.Current)}
				})
		})
	})
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return ""
}

type useCmd struct {
	Name string `arg:"" help:"Host: its name, local for this machine alone, or auto."`
}

// Help is shown below the flags' summary.
func (c *useCmd) Help() string {
	return `Later commands work on the host, unless TURN_HOST names another one. local is this
machine without a server. auto is the server of this machine while it runs, and
otherwise this machine without a server.`
}

// Examples returns command lines for the help.
func (c *useCmd) Examples() []string {
	return []string{"turn host use work", "turn host use local"}
}

// Run selects the host.
func (c *useCmd) Run(a *cli.App) error {
	return a.Do(func(ctx context.Context) error {
		s, err := store(a)
		if err != nil {
			return err
		}
		return s.Change(ctx, func(l *hosts.List) error {
			switch c.Name {
			case hosts.Local, hosts.Auto:
				l.Current = c.Name
				return nil
			}
			name, _, err := l.Find(c.Name)
			l.Current = name
			return err
		})
	})
}

type showCmd struct {
	Name string `arg:"" optional:"" help:"Host (default: the current one)."`
	JSON bool   `name:"json" help:"Print JSON."`
}

// Run shows the host.
func (c *showCmd) Run(a *cli.App) error {
	return a.Do(func(context.Context) error {
		s, err := known(a)
		if err != nil {
			return err
		}
		current, err := a.CurrentHost()
		if err != nil {
			return err
		}
		if c.Name == "" {
			c.Name = current
		}
		if c.Name == hosts.Local || c.Name == hosts.Auto {
			return turnstone.Errorf("host.show", turnstone.KindInvalid, "host "+c.Name,
				"is this machine, about which nothing is stored").
				WithHint("name a host of turn host ls")
		}
		list, err := s.Load()
		if err != nil {
			return err
		}
		name, h, err := list.Find(c.Name)
		if err != nil {
			return err
		}
		rep, err := report(name, h, current)
		return a.Result(rep, err, func(w io.Writer) {
			terminal.Println(w, "name   "+rep.Name)
			terminal.Println(w, "url    "+rep.URL)
			if rep.TokenFile != "" {
				terminal.Println(w, "token  in "+terminal.Name(rep.TokenFile))
			}
			if rep.SealFile != "" {
				terminal.Println(w, "seal   with the key in "+terminal.Name(rep.SealFile))
			}
			if rep.Root != nil {
				terminal.Println(w, "root   "+rep.Root.Key+fmt.Sprint(", epoch ", rep.Root.Epoch))
			}
			for _, n := range rep.Nodes {
				terminal.Println(w, "node   "+n.line())
			}
		})
	})
}

type rmCmd struct {
	Name []string `arg:"" help:"Hosts to remove."`
	JSON bool     `name:"json" help:"Print JSON."`
}

// Run removes the hosts.
func (c *rmCmd) Run(a *cli.App) error {
	return a.Do(func(ctx context.Context) error {
		s, err := store(a)
		if err != nil {
			return err
		}
		rep := cli.RemovedReport{Removed: []string{}}
		err = s.Change(ctx, func(l *hosts.List) error {
			for _, name := range c.Name {
				found, h, err := l.Find(name)
				if err != nil {
					return err
				}
				if err := s.Forget(h); err != nil {
					return err
				}
				if l.Current == found {
					l.Current = ""
				}
				delete(l.Hosts, found)
				rep.Removed = append(rep.Removed, found)
			}
			return nil
		})
		return a.Result(rep, err, nil)
	})
}

// tokenFile returns the path that --token-file stands for; "-" stores standard input.
func tokenFile(a *cli.App, s hosts.Store, name, given string) (string, error) {
	if given == "" {
		return "", nil
	}
	if given == "-" {
		return s.TakeToken(name, a.Stdin)
	}
	path, err := filepath.Abs(given)
	if err == nil {
		_, err = hosts.ReadToken(path)
	}
	return path, err
}

// fingerprints lists nodes for a user who compares.
func fingerprints(nodes []NodeReport) string {
	var lines []string
	for _, n := range nodes {
		lines = append(lines, fmt.Sprintf("node %s has the key %s", n.Name, n.Key))
	}
	return some(lines)
}

// maxSome bounds the nodes in one message: a server in hostile hands can have any number of them.
const maxSome = 10

// some joins lines about nodes, and counts those that are too many.
func some(lines []string) string {
	text := strings.Join(lines[:min(len(lines), maxSome)], "; ")
	if n := len(lines) - maxSome; n > 0 {
		text += fmt.Sprintf("; and %d more", n)
	}
	return text
}
