package proofcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
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

// KeyCmd has the commands below turn key.
type KeyCmd struct {
	Make    keyMakeCmd    `cmd:"" help:"Make your key, which signs your turns."`
	Ls      keyLsCmd      `cmd:"" help:"List own, trusted and revoked keys."`
	Show    keyShowCmd    `cmd:"" help:"Print a public key, for others to trust."`
	Import  keyImportCmd  `cmd:"" help:"Sign with a key file, or a key of the SSH agent."`
	Rotate  keyRotateCmd  `cmd:"" help:"Replace a key; what it signed stays valid."`
	Trust   keyTrustCmd   `cmd:"" help:"Trust a key of another node or user."`
	Untrust keyUntrustCmd `cmd:"" help:"Remove a key from the trusted keys."`
	Revoke  keyRevokeCmd  `cmd:"" help:"Reject everything that a key signed."`
}

// withRing calls f with the keys of the state directory.
func withRing(a *cli.App, f func(ctx context.Context, r key.Ring) error) error {
	dir, err := a.StateDir()
	if err != nil {
		return err
	}
	ring := key.Ring{Dir: dir, Ask: a.Passphrase}
	return a.Do(func(ctx context.Context) error { return f(ctx, ring) })
}

// readRing is withRing for a command that changes nothing: it creates no state directory.
func readRing(a *cli.App, f func(ctx context.Context, r key.Ring) error) error {
	dir, err := a.Locate()
	if err != nil {
		return err
	}
	ring := key.Ring{Dir: &statedir.Dir{Root: dir}}
	return a.Do(func(ctx context.Context) error { return f(ctx, ring) })
}

type keyMakeCmd struct {
	Passphrase bool `help:"Encrypt the key with a passphrase."`
}

// Help is shown below the flags' summary.
func (c *keyMakeCmd) Help() string {
	return `The key is an Ed25519 key in OpenSSH's format: keys/caller in the state directory. It
signs each of your later turns, beside the key of this machine, which is made on first
use. Programs name a file with the passphrase in TURN_PASSPHRASE_FILE.`
}

// Examples returns command lines for the help.
func (c *keyMakeCmd) Examples() []string {
	return []string{
		"turn key make",
		"turn key make --passphrase",
	}
}

// Run makes the key.
func (c *keyMakeCmd) Run(a *cli.App) error {
	return withRing(a, func(ctx context.Context, r key.Ring) error {
		pass, err := a.NewPassphrase(c.Passphrase)
		if err != nil {
			return err
		}
		s, err := r.Make(ctx, key.Caller, pass)
		clear(pass)
		return a.Result(nil, err, func(w io.Writer) {
			terminal.Println(w, "caller "+s.ID()+" "+r.Dir.Path("keys", "caller"))
		})
	})
}

type keyLsCmd struct {
	JSON bool `name:"json" help:"Print JSON."`
}

// A KeysReport is the output of turn key ls.
type KeysReport struct {
	Keys []KeyReport `json:"keys"`
}

// A KeyReport is a key that is trusted here, or one of this state directory.
type KeyReport struct {
	Role    string    `json:"role"` // "node", "caller"; empty: any
	Name    string    `json:"name,omitempty"`
	Key     string    `json:"key"`    // its fingerprint
	Public  string    `json:"public"` // empty: revoked by its fingerprint alone
	Comment string    `json:"comment,omitempty"`
	Own     bool      `json:"own"` // signs the turns of this state directory
	Revoked bool      `json:"revoked"`
	After   time.Time `json:"valid_after,omitzero"`
	Before  time.Time `json:"valid_before,omitzero"`
}

// Run lists the keys.
func (c *keyLsCmd) Run(a *cli.App) error {
	return readRing(a, func(_ context.Context, r key.Ring) error {
		trust, err := r.List()
		if err != nil {
			return err
		}
		own, err := r.Own()
		rep := KeysReport{[]KeyReport{}}
		for _, e := range trust.Entries() {
			mine, is := own[e.Role]
			rep.Keys = append(rep.Keys, KeyReport{Role: string(e.Role), Name: e.Name,
				Key: e.Key.ID(), Public: e.Key.String(), Comment: e.Comment,
				Own: is && mine.Equal(e.Key), Revoked: trust.Revoked(e.Key.ID()), After: e.After,
				Before: e.Before})
		}
		for _, id := range trust.AllRevoked() { // such as of a host's node, or of its root
			if !slices.ContainsFunc(rep.Keys, func(k KeyReport) bool { return k.Key == id }) {
				rep.Keys = append(rep.Keys, KeyReport{Key: id, Revoked: true})
			}
		}
		return a.Result(rep, err, func(w io.Writer) {
			terminal.List(w, false, "ROLE\tNAME\tKEY\tSTATUS\tCOMMENT", rep.Keys,
				func(k KeyReport) []any {
					return []any{k.Role, k.Name, k.Key, k.status(), k.Comment}
				})
		})
	})
}

// status says what a key is good for.
func (k KeyReport) status() string {
	switch {
	case k.Revoked:
		return "revoked"
	case !k.Before.IsZero():
		return "until " + k.Before.UTC().Format(time.RFC3339)
	case k.Own:
		return "own"
	}
	return "trusted"
}

type keyShowCmd struct {
	Role string `arg:"" optional:"" help:"Role of the key: caller or node (default: caller)." enum:"caller,node" default:"caller"`
	Pub  bool   `help:"Print the public key alone." xor:"form"`
	PEM  bool   `name:"pem" help:"Print the public key as PEM (PKIX)." xor:"form"`
}

// Help is shown below the flags' summary.
func (c *keyShowCmd) Help() string {
	return `The output is one line in OpenSSH's format allowed_signers. Send it to everyone who
verifies your receipts, for turn key trust or turn verify --trust. With a host selected,
the keys of node are those that turn host add has pinned, or that its root certified.
--pem is for verifiers such as cosign, which know no keys in OpenSSH's format.`
}

// Examples returns command lines for the help.
func (c *keyShowCmd) Examples() []string {
	return []string{
		"turn key show",
		"turn key show node > node.pub.trust",
	}
}

// Run prints the key.
func (c *keyShowCmd) Run(a *cli.App) error {
	return readRing(a, func(_ context.Context, r key.Ring) error {
		role := key.Role(c.Role)
		entries, err := c.pinned(a, r, role)
		if err != nil {
			return err
		}
		if entries == nil {
			if entries, err = ownKey(r, role); err != nil {
				return err
			}
		}
		lines, err := c.lines(entries)
		return a.Result(nil, err, func(w io.Writer) {
			for _, line := range lines {
				terminal.Println(w, line)
			}
		})
	})
}

// lines returns the lines of the keys in the form that is asked for.
func (c *keyShowCmd) lines(entries []key.Entry) (lines []string, err error) {
	for _, e := range entries {
		text := e.Line()
		switch {
		case c.Pub:
			text = e.Key.String()
		case c.PEM:
			if text, err = e.Key.PEM(); err != nil {
				return nil, err
			}
		}
		lines = append(lines, strings.Split(strings.TrimSuffix(text, "\n"), "\n")...)
	}
	return lines, nil
}

// ownKey returns the key of this state directory.
func ownKey(r key.Ring, role key.Role) ([]key.Entry, error) {
	own, err := r.Own()
	if err != nil {
		return nil, err
	}
	if p, has := own[role]; has {
		return []key.Entry{{Key: p, Role: role}}, nil
	}
	hint := "turn key make creates one"
	if role == key.Node {
		hint = "this machine has run no turn yet: the first one makes its key, and so does turn serve"
	}
	return nil, turnstone.Errorf("key.show", turnstone.KindNotFound, string(role)+" key",
		"there is none").WithHint(hint)
}

// pinned returns the keys of the nodes of the selected host, or nil without one: the key of this
// machine counts then.
func (c *keyShowCmd) pinned(a *cli.App, r key.Ring, role key.Role) (all []key.Entry, err error) {
	if role != key.Node {
		return nil, nil
	}
	name, err := a.CurrentHost()
	if err != nil || name == hosts.Local || name == hosts.Auto {
		return nil, err
	}
	list, err := hosts.Store{Dir: r.Dir}.Load()
	if err != nil {
		return nil, err
	}
	_, h, err := list.Find(name)
	if err != nil {
		return nil, err
	}
	trust := &key.Trust{}
	if err := h.Pin(trust, ""); err != nil {
		return nil, err
	}
	all = trust.Entries()
	if h.Root != nil {
		certified, err := h.Root.Entries()
		if err != nil {
			return nil, err
		}
		all = append(all, certified...)
	}
	slices.SortFunc(all, func(a, b key.Entry) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

type keyImportCmd struct {
	From  string `arg:"" optional:"" help:"Key file, or with --agent a fingerprint."`
	Agent bool   `help:"Use a key of the SSH agent."`
}

// Help is shown below the flags' summary.
func (c *keyImportCmd) Help() string {
	return `A key file has OpenSSH's private key format, type Ed25519 and mode 0600. The file is
copied, and keeps its passphrase. With --agent the private key stays in the SSH agent,
or in the security token that the agent uses.`
}

// Examples returns command lines for the help.
func (c *keyImportCmd) Examples() []string {
	return []string{
		"turn key import ~/.ssh/id_ed25519",
		"turn key import --agent",
	}
}

// Validate is called by kong.
func (c *keyImportCmd) Validate() error {
	if c.From == "" && !c.Agent {
		return errors.New("name a key file, or use --agent")
	}
	return nil
}

// Run imports the key.
func (c *keyImportCmd) Run(a *cli.App) error {
	return withRing(a, func(ctx context.Context, r key.Ring) error {
		take := r.Import
		if c.Agent {
			take = r.UseAgent
		}
		s, err := take(ctx, c.From)
		return a.Result(nil, err, func(w io.Writer) { terminal.Println(w, "caller "+s.ID()) })
	})
}

type keyRotateCmd struct {
	Role       string `arg:"" optional:"" help:"Role of the key: caller or node (default: caller)." enum:"caller,node" default:"caller"`
	Passphrase bool   `help:"Encrypt the new key with a passphrase."`
}

// Validate is called by kong.
func (c *keyRotateCmd) Validate() error {
	if c.Passphrase && c.Role == string(key.Node) {
		return errors.New("the key of the node has no passphrase, because turns run unattended")
	}
	return nil
}

// Run rotates the key.
func (c *keyRotateCmd) Run(a *cli.App) error {
	return withRing(a, func(ctx context.Context, r key.Ring) error {
		pass, err := a.NewPassphrase(c.Passphrase)
		if err != nil {
			return err
		}
		old, s, err := r.Rotate(ctx, key.Role(c.Role), pass)
		clear(pass)
		return a.Result(nil, err, func(w io.Writer) {
			terminal.Println(w, fmt.Sprintf("%s %s, was %s", c.Role, s.ID(), old.ID()))
		})
	})
}

type keyTrustCmd struct {
	Key  string `arg:"" help:"Key: TYPE BASE64, a file .pub, or a line of allowed_signers."`
	Role string `help:"Set the role (default: that of the line, or caller)." enum:",caller,node" default:"" placeholder:"caller|node"`
	Name string `help:"Set the name of the node or the user." placeholder:"NAME"`
}

// Help is shown below the flags' summary.
func (c *keyTrustCmd) Help() string {
	return `Compare the fingerprint with its owner first: everything that the key signs in its
role verifies from then on. A key has one role: caller, unless --role or the line of
allowed_signers says node. The list is $TURN_HOME/trusted.`
}

// Examples returns command lines for the help.
func (c *keyTrustCmd) Examples() []string {
	return []string{
		"turn key trust --name alice alice.pub",
		"turn key trust --role node --name build1 build1.pub",
	}
}

// Run trusts the key.
func (c *keyTrustCmd) Run(a *cli.App) error {
	return withRing(a, func(ctx context.Context, r key.Ring) error {
		text := strings.TrimSpace(c.Key)
		if !strings.Contains(text, " ") {
			b, err := os.ReadFile(text)
			if err == nil && len(b) > 16<<10 {
				err = fmt.Errorf("it has %d bytes", len(b))
			}
			if err != nil {
				return turnstone.Errorf("key.trust", turnstone.KindInvalid, text,
					"is no file with a public key: %w", pathCause(err))
			}
			text = strings.TrimSpace(string(b))
		}
		e, err := c.entry(text)
		if err != nil {
			return err
		}
		added, err := r.Trust(ctx, e)
		return a.Result(nil, err, func(w io.Writer) {
			line := strings.TrimSpace(fmt.Sprintf("%s %s %s", e.Role, e.Key.ID(),
				terminal.Printable(e.Name)))
			if !added {
				line += ": trusted already"
			}
			terminal.Println(w, line)
		})
	})
}

// entry returns the trusted key of a line: that of a list with its role, or a public key.
func (c *keyTrustCmd) entry(line string) (e key.Entry, err error) {
	if key.IsPublic(line) {
		e.Role, e.Name = key.Role(cmp.Or(c.Role, string(key.Caller))), c.Name
		e.Key, e.Comment, err = key.ParsePublic(line)
		return e, err
	}
	all, err := key.ParseEntries(line)
	if err != nil {
		return e, err
	}
	e = all[0]
	e.Name = cmp.Or(c.Name, e.Name)
	switch id := "key " + e.Key.ID(); {
	case len(all) > 1:
		err = turnstone.Errorf("key.trust", turnstone.KindInvalid, id,
			"has %d principals in its line", len(all)).WithHint("write one principal")
	case c.Role != "" && c.Role != string(e.Role):
		err = turnstone.Errorf("key.trust", turnstone.KindInvalid, id,
			"is a %s's in its line, and --role says %s", e.Role, c.Role).
			WithHint("ask its owner which of the two it is; the line alone needs no --role")
	}
	return e, err
}

type keyUntrustCmd struct {
	Key string `arg:"" help:"Key: its fingerprint, or TYPE BASE64."`
}

// Help is shown below the flags' summary.
func (c *keyUntrustCmd) Help() string {
	return `The key is then unknown: what it signed does not verify, unless --trust names the key.
turn key trust adds it again. To reject a key for good, use turn key revoke.`
}

// Run removes the key from the list.
func (c *keyUntrustCmd) Run(a *cli.App) error {
	return withRing(a, func(ctx context.Context, r key.Ring) error {
		id, err := r.Untrust(ctx, c.Key)
		return a.Result(nil, err, func(w io.Writer) { terminal.Println(w, "not trusted "+id) })
	})
}

type keyRevokeCmd struct {
	Key string `arg:"" help:"Key: its fingerprint, or TYPE BASE64."`
}

// Help is shown below the flags' summary.
func (c *keyRevokeCmd) Help() string {
	return `Nothing that the key signed verifies here from then on, whenever it was signed. To
keep what an old key signed, use turn key rotate. The list is $TURN_HOME/revoked.`
}

// Run revokes the key.
func (c *keyRevokeCmd) Run(a *cli.App) error {
	return withRing(a, func(ctx context.Context, r key.Ring) error {
		id, err := r.Revoke(ctx, c.Key)
		return a.Result(nil, err, func(w io.Writer) { terminal.Println(w, "revoked "+id) })
	})
}
