package hostcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/channel/authority"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/proof/key"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/terminal"
)

// rootCmd has the commands of the operator of servers, below turn host root.
type rootCmd struct {
	Make   rootMakeCmd   `cmd:"" help:"Make a root key, which certifies nodes."`
	Show   rootShowCmd   `cmd:"" help:"Show the root and the nodes that it certified."`
	Sign   rootSignCmd   `cmd:"" help:"Certify the key of a node."`
	Revoke rootRevokeCmd `cmd:"" help:"End certificates before their time."`
	Rotate rootRotateCmd `cmd:"" help:"Replace the root by a new one that clients follow."`
}

// withRoot calls f with the root of the state directory, which it creates.
func withRoot(a *cli.App, f func(context.Context, authority.Authority) error) error {
	return a.Do(func(ctx context.Context) error {
		dir, err := a.StateDir()
		if err != nil {
			return err
		}
		return f(ctx, authority.Authority{Ring: key.Ring{Dir: dir, Ask: a.Passphrase}})
	})
}

// A RootReport is an operator's root, and what it signed.
type RootReport struct {
	Key     string          `json:"key"` // its fingerprint
	Public  string          `json:"public"`
	Epoch   uint64          `json:"epoch"`
	Nodes   []IssuedReport  `json:"nodes"`
	Revoked []RevokedReport `json:"revoked"`
	Files   []string        `json:"files,omitempty"` // new certificates
}

// An IssuedReport is a node with a certificate.
type IssuedReport struct {
	Name    string    `json:"name,omitempty"`
	Key     string    `json:"key"` // its fingerprint
	Public  string    `json:"public"`
	After   time.Time `json:"valid_after"`
	Expires time.Time `json:"expires"`
}

// A RevokedReport is a key that gets no certificate any more.
type RevokedReport struct {
	Name  string    `json:"name,omitempty"`
	Key   string    `json:"key"` // its fingerprint
	Epoch uint64    `json:"epoch"`
	Time  time.Time `json:"time"`
}

func rootReport(r *authority.Record, files ...string) RootReport {
	rep := RootReport{Key: r.ID(), Public: r.Root, Epoch: r.Epoch, Nodes: []IssuedReport{},
		Revoked: []RevokedReport{}, Files: files}
	for _, n := range r.Nodes {
		rep.Nodes = append(rep.Nodes, IssuedReport{n.Node, n.ID(), n.Key, n.Time, n.Expires})
	}
	for _, o := range r.Revoked {
		rep.Revoked = append(rep.Revoked, RevokedReport{o.Node, o.Key, o.Epoch, o.Time})
	}
	return rep
}

// show prints a report.
func (r RootReport) show(w io.Writer) {
	terminal.Println(w, "root    "+r.Key)
	terminal.Println(w, "public  "+r.Public)
	terminal.Println(w, fmt.Sprint("epoch   ", r.Epoch))
	for _, n := range r.Nodes {
		terminal.Println(w, "node    "+named(n.Name)+n.Key+" until "+n.Expires.Format(time.RFC3339))
	}
	for _, o := range r.Revoked {
		terminal.Println(w, "revoked "+named(o.Name)+o.Key+fmt.Sprint(" in epoch ", o.Epoch))
	}
	for _, f := range r.Files {
		terminal.Println(w, "wrote   "+terminal.Name(f))
	}
}

func named(name string) string {
	if name == "" {
		return ""
	}
	return name + " "
}

type rootMakeCmd struct {
	Passphrase bool `help:"Encrypt the key with a passphrase."`
	JSON       bool `name:"json" help:"Print JSON."`
}

// Help is shown below the flags' summary.
func (c *rootMakeCmd) Help() string {
	return `The root is for the operator's own machine, not for a server: keys/root-1 and
keys/root.json in the state directory. Keep a copy of both. A client that pins its
fingerprint (turn host add --root) trusts the nodes that it certifies.`
}

// Examples returns command lines for the help.
func (c *rootMakeCmd) Examples() []string {
	return []string{"turn host root make --passphrase"}
}

// Run makes the root.
func (c *rootMakeCmd) Run(a *cli.App) error {
	return withRoot(a, func(ctx context.Context, o authority.Authority) error {
		pass, err := a.NewPassphrase(c.Passphrase)
		if err != nil {
			return err
		}
		defer clear(pass)
		r, err := o.Make(ctx, pass)
		if err != nil {
			return err
		}
		rep := rootReport(r)
		return a.Result(rep, nil, rep.show)
	})
}

type rootShowCmd struct {
	Pub  bool `help:"Print the public key alone, for turn host add --root."`
	JSON bool `name:"json" help:"Print JSON."`
}

// Examples returns command lines for the help.
func (c *rootShowCmd) Examples() []string {
	return []string{"turn host root show", "turn host root show --pub > root.pub"}
}

// Run shows the root.
func (c *rootShowCmd) Run(a *cli.App) error {
	return a.Do(func(context.Context) error {
		dir, err := a.Locate()
		if err != nil {
			return err
		}
		r, err := authority.Authority{Ring: key.Ring{Dir: &statedir.Dir{Root: dir}}}.Show()
		if err != nil {
			return err
		}
		rep := rootReport(r)
		return a.Result(rep, nil, func(w io.Writer) {
			if c.Pub {
				terminal.Println(w, rep.Public)
				return
			}
			rep.show(w)
		})
	})
}

type rootSignCmd struct {
	Key    string        `arg:"" help:"The node's public key, or a file with it."`
	Name   string        `help:"Only for the node of this name." placeholder:"NAME"`
	Pin    string        `help:"Fail unless the key has this fingerprint." placeholder:"SHA256:…"`
	From   string        `help:"Start of the time, as RFC 3339 (default: now)." placeholder:"TIME"`
	For    time.Duration `default:"2160h" help:"Time to its end, at most 8784h (default: 2160h)." placeholder:"2160h"`
	Output string        `short:"o" help:"Write the certificate to FILE (default: output)." placeholder:"FILE"`
	JSON   bool          `name:"json" help:"Print JSON."`
}

// Help is shown below the flags' summary.
func (c *rootSignCmd) Help() string {
	return `turn key show node --pub prints the key on the node's machine. Copy the certificate
to the node, where the setting node.certificate names its file, which is read again when
it changes. A new certificate of the same name does not end the earlier one:
turn host root revoke does.`
}

// Examples returns command lines for the help.
func (c *rootSignCmd) Examples() []string {
	return []string{
		"turn host root sign n1.pub --name n1 -o n1.cert",
		"turn host root sign n2.pub --pin SHA256:uUGyLs3zBOnBK1ONAHBtP7b1FSZQTqLPLJHCXbLbHRg --for 720h > n2.cert",
	}
}

// Validate is called by kong.
func (c *rootSignCmd) Validate() error {
	if c.For < time.Second {
		return fmt.Errorf("--for: %s is less than a second", c.For)
	}
	return nil
}

// A SignedReport is the output of turn host root sign.
type SignedReport struct {
	IssuedReport
	Epoch       uint64 `json:"epoch"`
	Root        string `json:"root"` // fingerprint
	Certificate string `json:"certificate"`
	File        string `json:"file,omitempty"`
}

// Run certifies a key.
func (c *rootSignCmd) Run(a *cli.App) error {
	q := authority.Request{Name: c.Name, For: c.For}
	var err error
	if q.Key, err = publicKey(c.Key); err != nil {
		return err
	}
	if c.Pin != "" && strings.TrimSpace(c.Pin) != q.Key.ID() {
		return cli.Fail(turnstone.Errorf("root.sign", turnstone.KindIntegrity, c.Key,
			"has the fingerprint %s", q.Key.ID()).
			WithHint("compare the key with turn key ls on the node's machine"))
	}
	if c.From != "" {
		if q.From, err = time.Parse(time.RFC3339, c.From); err != nil || q.From.IsZero() {
			return cli.Usage(turnstone.Errorf("root.sign", turnstone.KindInvalid, "--from",
				"%.40q is not a time such as 2027-01-31T00:00:00Z", c.From))
		}
	}
	return withRoot(a, func(ctx context.Context, o authority.Authority) error {
		s, err := o.Sign(ctx, q)
		if err != nil {
			return err
		}
		if c.Output != "" {
			if err := writeChain(c.Output, s.Chain); err != nil {
				return err
			}
		}
		root, err := key.Parse(s.Signer)
		rep := SignedReport{IssuedReport{s.Node, q.Key.ID(), s.Key, s.Time, s.Expires}, s.Epoch,
			root.ID(), string(s.Chain), c.Output}
		return a.Result(rep, err, func(w io.Writer) {
			if c.Output == "" {
				_, _ = w.Write(s.Chain)
			}
		})
	})
}

// publicKey returns the key that text is, or that is in the file which text names.
func publicKey(text string) (key.Public, error) {
	if !key.IsPublic(text) {
		b, err := readLine(text)
		if err != nil {
			return key.Public{}, cli.Fail(turnstone.NewError("root.key", turnstone.KindInvalid, text,
				err).WithHint("name a public key, or a file with one: turn key show node --pub"))
		}
		text = b
	}
	k, _, err := key.ParsePublic(strings.TrimSpace(text))
	if err != nil {
		err = cli.Fail(err)
	}
	return k, err
}

// maxLine bounds a file with one key in bytes.
const maxLine = 8 << 10

func readLine(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() || info.Size() > maxLine {
		return "", errors.New("is not a file with one key")
	}
	b, err := os.ReadFile(path)
	return string(b), err
}

func writeChain(path string, chain []byte) *turnstone.Error {
	if err := filestamp.WriteFile(path, chain, 0o644); err != nil {
		return turnstone.Classify("root.write", turnstone.KindUnavailable, path, err, "")
	}
	return nil
}

// writable makes the folder for certificates, if one is named, and reports that it cannot have any. It
// is called before the root changes: clients refuse the nodes that do not get new certificates.
func writable(dir string) error {
	if dir == "" {
		return nil
	}
	err := os.MkdirAll(dir, 0o755)
	if err == nil {
		var f *os.File
		if f, err = os.CreateTemp(dir, ".new-"); err == nil {
			err = errors.Join(f.Close(), os.Remove(f.Name()))
		}
	}
	if err != nil {
		return turnstone.Classify("root.write", turnstone.KindUnavailable, dir, err, "").
			WithHint("name a folder that you can write")
	}
	return nil
}

// writeAll writes certificates into a folder, with a file for each node, and returns their paths.
func writeAll(dir string, all []*authority.Signed) (files []string, err error) {
	if dir == "" {
		return nil, nil
	}
	for _, s := range all {
		name := s.Node
		if name == "" { // what its key begins with would be the same for all
			name = turnstone.DigestBytes([]byte(s.Key)).Hex()[:16]
		}
		path := filepath.Join(dir, name+".cert")
		if err := writeChain(path, s.Chain); err != nil {
			return files, err.WithHint("certify each node again with turn host root sign, because " +
				"the root has changed")
		}
		files = append(files, path)
	}
	return files, nil
}

type rootRevokeCmd struct {
	Node   []string `arg:"" optional:"" help:"Nodes: names, fingerprints or public keys."`
	Epoch  uint64   `help:"Continue with this epoch (default: the next)." placeholder:"N"`
	Output string   `short:"o" help:"Write new certificates of the others to DIR." placeholder:"DIR"`
	JSON   bool     `name:"json" help:"Print JSON."`
}

// Help is shown below the flags' summary.
func (c *rootRevokeCmd) Help() string {
	return `The root's epoch is raised: a client that has seen a certificate of the new epoch refuses
all of earlier epochs. So every other node needs its new certificate, which -o writes.
A client that is shown no new certificate trusts the revoked node until its
certificate expires. --epoch continues after the loss of the newest root.json: name the
nodes again that were revoked since its copy, which would get new certificates.`
}

// Examples returns command lines for the help.
func (c *rootRevokeCmd) Examples() []string {
	return []string{"turn host root revoke n2 -o certificates/"}
}

// Run revokes certificates.
func (c *rootRevokeCmd) Run(a *cli.App) error {
	return withRoot(a, func(ctx context.Context, o authority.Authority) error {
		if err := writable(c.Output); err != nil {
			return err
		}
		r, all, err := o.Revoke(ctx, c.Node, c.Epoch)
		return renewed(a, c.Output, r, all, err)
	})
}

// renewed writes certificates and reports the root.
func renewed(a *cli.App, dir string, r *authority.Record, all []*authority.Signed, err error) error {
	if err != nil {
		return err
	}
	files, err := writeAll(dir, all)
	rep := rootReport(r, files...)
	return a.Result(rep, err, rep.show)
}

type rootRotateCmd struct {
	Passphrase bool   `help:"Encrypt the new key with a passphrase."`
	Output     string `short:"o" help:"Write certificates by the new root to DIR." placeholder:"DIR"`
	JSON       bool   `name:"json" help:"Print JSON."`
}

// Help is shown below the flags' summary.
func (c *rootRotateCmd) Help() string {
	return `The old root signs the new one, and each certificate carries that signature: a client
that pins the old root follows to the new one when a node shows its new certificate,
and no longer believes the old one. If the old key has a passphrase, the new one gets one
too. Against a stolen root key that does not help:
its holder can name a successor too, so clients have to pin a new root themselves.`
}

// Examples returns command lines for the help.
func (c *rootRotateCmd) Examples() []string {
	return []string{"turn host root rotate --passphrase -o certificates/"}
}

// Run replaces the root.
func (c *rootRotateCmd) Run(a *cli.App) error {
	return withRoot(a, func(ctx context.Context, o authority.Authority) error {
		if err := writable(c.Output); err != nil {
			return err
		}
		locked, err := o.HasPassphrase()
		if err != nil {
			return err
		}
		pass, err := a.NewPassphrase(c.Passphrase || locked)
		if err != nil {
			return err
		}
		defer clear(pass)
		r, all, err := o.Rotate(ctx, pass)
		return renewed(a, c.Output, r, all, err)
	})
}
