// Package ringconfig makes the keyring of a state directory from settings.
package ringconfig

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"filippo.io/age/plugin"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/keyring"
	"turnstone.dev/turnstone/internal/keyring/agewrap"
	"turnstone.dev/turnstone/internal/keyring/clientkey"
	"turnstone.dev/turnstone/internal/keyring/transit"
	"turnstone.dev/turnstone/internal/statedir"
)

// Options are what a keyring is made of. Settings and Vault are checked.
type Options struct {
	Dir      *statedir.Dir
	Settings keyring.Settings
	Vault    keyring.VaultSettings
	// Tenant stands for {tenant} in vault.key.
	Tenant string
	// Token is Vault's token if vault.token names no file.
	Token string
	// Ask returns passphrases if keys.passphrase names no file; nil: there are none.
	Ask agewrap.Ask
	// UI asks the user for a plugin; nil: plugins that ask fail.
	UI *plugin.ClientUI
}

// Within makes the relative paths of the settings begin in dir, such as the state directory of the node
// that has a tenant's.
func (o *Options) Within(dir *statedir.Dir) {
	for _, path := range []*string{&o.Settings.Passphrase, &o.Settings.Identities, &o.Vault.CA,
		&o.Vault.Token} {
		if *path != "" && !filepath.IsAbs(*path) {
			*path = dir.Path(*path)
		}
	}
}

// A Keyring is a Ring with the wrappers that others use directly.
type Keyring struct {
	*keyring.Ring
	// File is the keyring of the state directory.
	File *agewrap.File
	// Clients has the keys that clients have sent.
	Clients *clientkey.Holder

	vault *transit.Wrapper // may be nil
}

// Close forgets all keys, and closes connections that nobody uses.
func (k *Keyring) Close() {
	k.Ring.Close()
	if k.vault != nil {
		k.vault.Close()
	}
}

// Open returns the keyring of a state directory. It connects to nothing, and makes no file: the
// first new key does. Close it. The error is of kind Invalid.
//
// Every wrapper that the settings describe unwraps, also if keys.wrap names another one, so that
// keys can move from one to the other.
func Open(o Options) (*Keyring, error) {
	if key, err := o.Settings.Check(&o.Vault); err != nil {
		return nil, turnstone.NewError("keyring.open", turnstone.KindInvalid, key, err)
	}
	ask := o.Ask
	if o.Settings.Passphrase != "" {
		path := o.path(o.Settings.Passphrase)
		ask = func(string) ([]byte, error) { return passphrase(path) }
	}
	table := keyring.NewTable(o.Dir)
	k := &Keyring{Clients: clientkey.New(clientkey.Options{Idle: o.Settings.Idle})}
	k.File = agewrap.NewFile(o.Dir, ask, func() error { return notLost(o.Dir, table) })
	wrappers := map[keyring.Kind]keyring.Wrapper{keyring.KindFile: k.File,
		keyring.KindClient: k.Clients}
	if o.Vault.Address != "" {
		w, err := o.vault()
		if err != nil {
			return nil, err
		}
		wrappers[keyring.KindVault], k.vault = w, w
	}
	if o.Settings.Identities != "" {
		w, err := agewrap.LoadIdentities(o.path(o.Settings.Identities), o.Settings.Recipient, ask, o.UI)
		if err != nil {
			return nil, err
		}
		wrappers[keyring.KindPlugin] = w
	}
	options := keyring.Options{Dir: o.Dir, Primary: o.Settings.Primary(), Wrappers: wrappers,
		Keep: o.Settings.Keep}
	if len(o.Settings.Recovery) > 0 {
		by, err := agewrap.NewRecipients(o.Settings.Recovery, o.UI)
		if err != nil {
			return nil, err
		}
		options.Recovery = by
	}
	var err error
	k.Ring, err = keyring.New(options)
	return k, err
}

// path returns the path of a file that a setting names.
func (o *Options) path(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return o.Dir.Path(name)
}

// vault returns the wrapper of the settings [vault].
func (o *Options) vault() (*transit.Wrapper, error) {
	v := transit.Options{Address: o.Vault.Address, Namespace: o.Vault.Namespace, Mount: o.Vault.Mount,
		Key: strings.ReplaceAll(o.Vault.Key, "{tenant}", o.Tenant), Timeout: o.Vault.Timeout}
	if o.Vault.CA != "" {
		v.CA = o.path(o.Vault.CA)
	}
	switch token := o.Token; {
	case o.Vault.Token != "":
		v.Token = transit.TokenFile(o.path(o.Vault.Token))
	case token != "":
		v.Token = func() (string, error) { return token, nil }
	}
	return transit.New(v)
}

// notLost reports a keyring that is missing and wraps keys: making another one would hide the loss.
func notLost(dir *statedir.Dir, table *keyring.Table) error {
	ids, err := table.List()
	if err != nil {
		return err
	}
	for _, id := range ids {
		rec, err := table.Get(id)
		if errors.Is(err, keyring.ErrShredded) {
			continue
		}
		if err != nil {
			return err
		}
		for _, w := range rec.Wrappings {
			if w.Kind == keyring.KindFile {
				return agewrap.Lost(dir.Path("keys", "rest"))
			}
		}
	}
	return nil
}

// maxPassphrase bounds a passphrase in bytes.
const maxPassphrase = 4 << 10

// passphrase returns the first line of a file.
func passphrase(path string) ([]byte, error) {
	fail := func(err error, hint string) ([]byte, error) {
		return nil, turnstone.NewError("keyring.open", turnstone.KindInvalid, path, err).WithHint(hint)
	}
	f, err := os.Open(path)
	if err != nil {
		return fail(err, "write the passphrase to the file, or name another one in keys.passphrase")
	}
	defer func() { _ = f.Close() }()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() || info.Mode().Perm()&0o007 != 0 {
		return fail(errors.Join(err, errors.New("can be read or written by all users, or is not a file")),
			"chmod 600 "+path)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxPassphrase+1))
	if err != nil {
		return fail(err, "")
	}
	line, _, _ := bytes.Cut(b, []byte("\n"))
	line = bytes.TrimSuffix(line, []byte("\r"))
	if len(line) == 0 || len(line) > maxPassphrase {
		return fail(fmt.Errorf("its first line has %d bytes", len(line)),
			"write the passphrase into the first line")
	}
	return line, nil
}
