// Package domaincmd has the commands about the keys of domains: what sessions are sealed with at
// rest.
package domaincmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"filippo.io/age/plugin"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/keyring"
	"turnstone.dev/turnstone/internal/keyring/agewrap"
	"turnstone.dev/turnstone/internal/keyring/ringconfig"
	"turnstone.dev/turnstone/internal/store/seal"
	"turnstone.dev/turnstone/internal/terminal"
)

// Cmd has the commands below turn domain.
type Cmd struct {
	Ls         lsCmd         `cmd:"" help:"List domains and what wraps their keys."`
	Check      checkCmd      `cmd:"" help:"Check that the keys of domains can be unwrapped."`
	Rotate     rotateCmd     `cmd:"" help:"Make a new wrapping key, and wrap all keys with it."`
	Rewrap     rewrapCmd     `cmd:"" help:"Wrap all keys as the settings say now."`
	Recover    recoverCmd    `cmd:"" help:"Wrap keys again after the wrapping key was lost."`
	Passphrase passphraseCmd `cmd:"" help:"Encrypt the keyring keys/rest with a passphrase."`
}

// Place selects a keyring.
type Place struct {
	Tenant string `help:"Use the domains of this tenant of a server." placeholder:"NAME"`
}

// pluginUI asks the user for a plugin, at the terminal.
func pluginUI(a *cli.App) *plugin.ClientUI {
	say := func(format string, v ...any) { terminal.Printf(a.Stderr, format+"\n", v...) }
	return plugin.NewTerminalUI(say, say)
}

// A Wrapping is what wraps a domain's key.
type Wrapping struct {
	Kind string `json:"kind"` // "file", "age-plugin", "vault", "client", "recovery"
	Key  string `json:"key"`  // name and version of the wrapping key
}

// A Domain is a domain of a state directory.
type Domain struct {
	ID        string     `json:"id"`
	Created   time.Time  `json:"created,omitzero"`
	Wrappings []Wrapping `json:"wrappings"`
	// Current reports that the key is wrapped as the settings say now.
	Current bool `json:"current"`
	// Sessions are the names or IDs of the sessions in the domain; none: turn gc destroys its key.
	Sessions []string       `json:"sessions"`
	Error    *cli.ErrorBody `json:"error,omitempty"` // the file of the domain cannot be read
}

// A DomainsReport is the output of turn domain ls.
type DomainsReport struct {
	Domains []Domain `json:"domains"`
}

// A Failure is a domain whose key could not be used.
type Failure struct {
	Domain string        `json:"domain"`
	Error  cli.ErrorBody `json:"error"`
}

// A WrappedReport is the output of turn domain rotate, rewrap and recover.
type WrappedReport struct {
	Key     string    `json:"key,omitempty"` // the new wrapping key of rotate
	Wrapped int       `json:"wrapped"`       // keys that were wrapped again
	Current int       `json:"current"`       // keys that were wrapped so already
	Pruned  []string  `json:"pruned"`        // old wrapping keys that were destroyed
	Failed  []Failure `json:"failed"`
}

// A CheckReport is the output of turn domain check.
type CheckReport struct {
	Good   int       `json:"good"` // keys that can be unwrapped
	Failed []Failure `json:"failed"`
}

type lsCmd struct {
	Place
	JSON bool `name:"json" help:"Print JSON."`
}

// Help is shown below the flags' summary.
func (c *lsCmd) Help() string {
	return `A domain is what is sealed with one key: mostly a session. STATUS is "current" if the key
is wrapped as the settings say now, "old" if turn domain rewrap would wrap it again,
"client" if a client's key wraps it, and "damaged". The keys themselves are not read.
turn gc destroys the keys of domains without sessions after an hour.`
}

// Examples returns command lines for the help.
func (c *lsCmd) Examples() []string {
	return []string{"turn domain ls", "turn domain ls --tenant acme"}
}

// Run lists the domains.
func (c *lsCmd) Run(a *cli.App) error {
	return c.with(a, false, func(ctx context.Context, k *ringconfig.Keyring) error {
		rep := DomainsReport{[]Domain{}}
		in, err := c.sessions(ctx, a)
		if err != nil {
			return err
		}
		unknown := k.List(ctx, func(s keyring.Status) error {
			d := Domain{ID: s.ID.String(), Created: s.Created, Current: s.Current,
				Wrappings: []Wrapping{}, Sessions: append([]string{}, in[s.ID.String()]...)}
			for _, w := range s.Wrappings {
				d.Wrappings = append(d.Wrappings, Wrapping{string(w.Kind), w.Name})
			}
			if s.Err != nil {
				body := cli.NewErrorBody(s.Err)
				d.Error = &body
			}
			rep.Domains = append(rep.Domains, d)
			return nil
		})
		now := time.Now()
		err = a.Result(rep, nil, func(w io.Writer) {
			terminal.List(w, false, "DOMAIN\tMADE\tSESSIONS\tSTATUS\tWRAPPED BY", rep.Domains, func(d Domain) []any {
				made := ""
				if !d.Created.IsZero() {
					made = terminal.Ago(d.Created, now)
				}
				return []any{d.ID, made, d.in(), d.status(unknown), d.by()}
			})
		})
		if err != nil {
			return err
		}
		return unknown // the list is complete, except for what is current
	})
}

// status says whether the key is wrapped as it should be; unknown is why that is not known.
func (d *Domain) status(unknown error) string {
	switch {
	case d.Error != nil:
		return "damaged"
	case len(d.Wrappings) == 1 && d.Wrappings[0].Kind == string(keyring.KindClient):
		return "client"
	case unknown != nil:
		return "unknown"
	case d.Current:
		return "current"
	}
	return "old"
}

// in returns the sessions, shortened.
func (d *Domain) in() string {
	const shown = 3
	if len(d.Sessions) == 0 {
		return "none"
	}
	if more := len(d.Sessions) - shown; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(d.Sessions[:shown], ", "), more)
	}
	return strings.Join(d.Sessions, ", ")
}

func (d *Domain) by() string {
	var all []string
	for _, w := range d.Wrappings {
		all = append(all, w.Kind+" "+w.Key)
	}
	return strings.Join(all, ", ")
}

type checkCmd struct {
	Place
	Domains []string `arg:"" optional:"" name:"domain" help:"IDs of domains (default: all)."`
	JSON    bool     `name:"json" help:"Print JSON."`
}

// Help is shown below the flags' summary.
func (c *checkCmd) Help() string {
	return `Each key is unwrapped and forgotten. Domains whose key a client sends are not checked,
because the key is not here. Exit status: 0 all can be unwrapped, 1 some cannot.`
}

// Examples returns command lines for the help.
func (c *checkCmd) Examples() []string { return []string{"turn domain check"} }

// Run checks the keys.
func (c *checkCmd) Run(a *cli.App) error {
	return c.with(a, false, func(ctx context.Context, k *ringconfig.Keyring) error {
		rep := CheckReport{Failed: []Failure{}}
		said := &complaints{}
		ids, err := selected(k, c.Domains)
		if err != nil {
			return err
		}
		for _, id := range ids {
			err := k.Check(ctx, id)
			switch {
			case ctx.Err() != nil:
				return turnstone.Classify("domain.check", turnstone.KindCanceled, "", ctx.Err(), "")
			case errors.Is(err, keyring.ErrLocked), errors.Is(err, keyring.ErrShredded) &&
				len(c.Domains) == 0:
			case err != nil:
				rep.Failed = append(rep.Failed, said.failure(a, c.JSON, id, err))
			default:
				rep.Good++
			}
		}
		said.end(a)
		err = a.Result(rep, nil, func(w io.Writer) {
			terminal.Printf(w, "%d can be unwrapped, %d cannot\n", rep.Good, len(rep.Failed))
		})
		return failed(err, rep.Failed)
	})
}

// selected returns domains by their IDs; none: all.
func selected(k *ringconfig.Keyring, texts []string) (ids []keyring.ID, err error) {
	if len(texts) == 0 {
		return k.Table().List()
	}
	for _, text := range texts {
		id, err := seal.ParseID(text)
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// failed returns the error of a command whose report has failures.
func failed(err error, all []Failure) error {
	if err == nil && len(all) > 0 {
		return cli.Exit(cli.ExitFailed, nil)
	}
	return err
}

type rotateCmd struct {
	Place
	Prune bool `help:"Then destroy the old wrapping keys."`
	JSON  bool `name:"json" help:"Print JSON."`
}

// Help is shown below the flags' summary.
func (c *rotateCmd) Help() string {
	return `The keys of domains stay, and so does what they seal: only their wrappings change. Turns
may run meanwhile. If the command is interrupted, turn domain rewrap completes it.
--prune destroys the old wrapping keys, if all keys could be wrapped again: older
backups of domains/ are of no use then. Vault's versions are destroyed with Vault's
own tools. Keys that clients wrap stay. Exit status: 1 if a key could not be wrapped.`
}

// Examples returns command lines for the help.
func (c *rotateCmd) Examples() []string {
	return []string{"turn domain rotate", "turn domain rotate --prune"}
}

// Run rotates the wrapping key.
func (c *rotateCmd) Run(a *cli.App) error {
	return c.with(a, true, func(ctx context.Context, k *ringconfig.Keyring) error {
		name, err := k.Rotate(ctx)
		if err != nil {
			return err
		}
		rep := WrappedReport{Key: name}
		return rewrap(ctx, a, k, &rep, c.Prune, c.JSON)
	})
}

type rewrapCmd struct {
	Place
	Prune bool `help:"Then destroy the old wrapping keys."`
	JSON  bool `name:"json" help:"Print JSON."`
}

// Help is shown below the flags' summary.
func (c *rewrapCmd) Help() string {
	return `Use it after keys.wrap, vault.key or keys.recovery has changed, or if turn domain rotate
was interrupted. The settings have to describe what wraps the keys now, too.`
}

// Examples returns command lines for the help.
func (c *rewrapCmd) Examples() []string { return []string{"turn domain rewrap"} }

// Run wraps all keys again.
func (c *rewrapCmd) Run(a *cli.App) error {
	return c.with(a, true, func(ctx context.Context, k *ringconfig.Keyring) error {
		return rewrap(ctx, a, k, &WrappedReport{}, c.Prune, c.JSON)
	})
}

// rewrap wraps all keys again and prints the report.
func rewrap(ctx context.Context, a *cli.App, k *ringconfig.Keyring, rep *WrappedReport, prune,
	json bool) error {
	rep.Failed, rep.Pruned = []Failure{}, []string{}
	said := &complaints{}
	err := k.Rewrap(ctx, func(id keyring.ID, changed bool, err error) error {
		switch {
		case err != nil:
			rep.Failed = append(rep.Failed, said.failure(a, json, id, err))
		case changed:
			rep.Wrapped++
		default:
			rep.Current++
		}
		return nil
	})
	said.end(a)
	if err == nil && prune && len(rep.Failed) == 0 {
		var gone []string
		gone, err = k.Prune(ctx)
		rep.Pruned = append(rep.Pruned, gone...)
	}
	if err != nil {
		return err
	}
	err = a.Result(rep, nil, func(w io.Writer) {
		if rep.Key != "" {
			terminal.Println(w, "new wrapping key "+rep.Key)
		}
		terminal.Printf(w, "%d wrapped, %d current, %d failed\n", rep.Wrapped, rep.Current,
			len(rep.Failed))
		for _, name := range rep.Pruned {
			terminal.Println(w, "destroyed "+name)
		}
	})
	return failed(err, rep.Failed)
}

type recoverCmd struct {
	Place
	Identity string   `required:"" help:"File with the recovery identity." placeholder:"FILE"`
	Domains  []string `arg:"" optional:"" name:"domain" help:"IDs of domains (default: all)."`
	JSON     bool     `name:"json" help:"Print JSON."`
}

// Help is shown below the flags' summary.
func (c *recoverCmd) Help() string {
	return `The file has age identities, such as age-keygen makes them, as a whole encrypted with a
passphrase or not. Only domains whose keys were wrapped for keys.recovery can be
recovered. Their keys are wrapped as the settings say now; a keyring keys/rest that is
missing is made anew. Exit status: 1 if a key could not be recovered.`
}

// Examples returns command lines for the help.
func (c *recoverCmd) Examples() []string {
	return []string{"turn domain recover --identity /media/stick/recovery.key"}
}

// Run recovers the keys.
func (c *recoverCmd) Run(a *cli.App) error {
	return c.with(a, true, func(ctx context.Context, k *ringconfig.Keyring) error {
		by, err := agewrap.LoadIdentities(c.Identity, "", a.Passphrase, pluginUI(a))
		if err != nil {
			return err
		}
		ids, err := selected(k, c.Domains)
		if err != nil {
			return err
		}
		if k.Primary() == keyring.KindFile {
			if err := k.File.Renew(ctx); err != nil {
				return err
			}
		}
		rep, said := WrappedReport{Failed: []Failure{}, Pruned: []string{}}, &complaints{}
		for _, id := range ids {
			switch err := k.Recover(ctx, id, by); {
			case ctx.Err() != nil:
				return turnstone.Classify("domain.recover", turnstone.KindCanceled, "", ctx.Err(), "")
			case err != nil:
				rep.Failed = append(rep.Failed, said.failure(a, c.JSON, id, err))
			default:
				rep.Wrapped++
			}
		}
		said.end(a)
		err = a.Result(rep, nil, func(w io.Writer) {
			terminal.Printf(w, "%d recovered, %d failed\n", rep.Wrapped, len(rep.Failed))
		})
		return failed(err, rep.Failed)
	})
}

type passphraseCmd struct {
	Place
	Remove bool   `help:"Store the keyring without a passphrase." xor:"new"`
	New    string `help:"Read the new passphrase from this file." placeholder:"FILE" xor:"new"`
}

// Help is shown below the flags' summary.
func (c *passphraseCmd) Help() string {
	return `turn then asks for the passphrase before each command that needs a key; programs name a
file with it in TURN_PASSPHRASE_FILE, and servers in keys.passphrase. The old content
of the file is overwritten; copies of it in backups keep the old passphrase, or none.`
}

// Examples returns command lines for the help.
func (c *passphraseCmd) Examples() []string { return []string{"turn domain passphrase"} }

// Run sets or removes the passphrase.
func (c *passphraseCmd) Run(a *cli.App) error {
	return c.with(a, true, func(ctx context.Context, k *ringconfig.Keyring) error {
		pass, err := c.passphrase(a)
		if err != nil {
			return err
		}
		defer clear(pass)
		return k.File.SetPassphrase(ctx, pass)
	})
}

// passphrase returns the new passphrase; nil: none.
func (c *passphraseCmd) passphrase(a *cli.App) ([]byte, error) {
	if c.New != "" {
		b := *a
		b.Env.PassphraseFile = c.New
		return b.NewPassphrase(true)
	}
	return a.NewPassphrase(!c.Remove)
}
