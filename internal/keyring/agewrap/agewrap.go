// Package agewrap wraps the keys of domains with age (https://age-encryption.org/v1): by the
// keyring of a state directory (File), by identities that the operator's file names, such as those
// of plugins (Identities), and for recipients whose identities are elsewhere (Recipients).
//
// A wrapping's data is an age file of the secret. age authenticates no further data, so the secret
// itself names its domain.
package agewrap

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"strings"

	"filippo.io/age"
	"filippo.io/age/plugin"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/keyring"
)

// maxSecret bounds what an age file unwraps to, in bytes.
const maxSecret = 4 << 10

// encrypt returns an age file of a secret.
func encrypt(to []age.Recipient, secret keyring.Secret) ([]byte, error) {
	var b bytes.Buffer
	w, err := age.Encrypt(&b, to...)
	if err == nil {
		_, err = w.Write(secret)
	}
	if err == nil {
		err = w.Close()
	}
	return b.Bytes(), err
}

// decrypt returns the secret of an age file.
func decrypt(by []age.Identity, data []byte) (keyring.Secret, error) {
	r, err := age.Decrypt(bytes.NewReader(data), by...)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(r, maxSecret+1))
	if err == nil && len(b) > maxSecret {
		err = errors.New("the age file is too large for a key")
	}
	if err != nil {
		clear(b)
		return nil, err
	}
	return b, nil
}

// A Recipients wraps for age recipients whose identities are not here. It unwraps nothing. Its
// methods are safe for concurrent use.
type Recipients struct {
	name string
	all  []age.Recipient
	run  *runner
}

// NewRecipients returns a wrapper for the recipients "age1…", of which every single one can unwrap.
// ui may be nil. The error is of kind Invalid.
func NewRecipients(list []string, ui *plugin.ClientUI) (*Recipients, error) {
	r := &Recipients{name: strings.Join(list, ","), run: newRunner()}
	if len(r.name) > maxName {
		sum := sha256.Sum256([]byte(r.name))
		r.name = "sha256:" + hex.EncodeToString(sum[:])
	}
	for _, text := range list {
		one, err := parseRecipient(text, uiOr(ui))
		if err != nil {
			return nil, err
		}
		r.all = append(r.all, one)
	}
	if len(r.all) == 0 {
		return nil, turnstone.Errorf("keyring.age", turnstone.KindInvalid, "recipients",
			"there are none")
	}
	if pluginOf(r.all) != "" {
		return r, nil
	}
	if _, err := encrypt(r.all, nil); err != nil {
		return nil, turnstone.NewError("keyring.age", turnstone.KindInvalid, "recipients", err).
			WithHint("name recipients of one sort: age does not mix post-quantum and other ones")
	}
	return r, nil
}

// uiOr returns ui, or one without a user: age follows the pointer.
func uiOr(ui *plugin.ClientUI) *plugin.ClientUI { return cmp.Or(ui, &plugin.ClientUI{}) }

// maxName bounds a name in bytes, below keyring's bound of records.
const maxName = 400

// parseRecipient returns the recipient that a text names.
func parseRecipient(text string, ui *plugin.ClientUI) (age.Recipient, error) {
	fail := func(why string) (age.Recipient, error) {
		// the text is not quoted: somebody may have put the identity there
		return nil, turnstone.Errorf("keyring.age", turnstone.KindInvalid, "recipient", "%s", why).
			WithHint("write a recipient, such as age1… that age-keygen -y prints")
	}
	if strings.HasPrefix(strings.ToUpper(text), "AGE-") {
		return fail("is an identity, which is secret")
	}
	all, err := age.ParseRecipients(strings.NewReader(text))
	if err == nil && len(all) == 1 && !strings.ContainsAny(text, "\r\n#") {
		return all[0], nil
	}
	one, err := plugin.NewRecipient(text, ui)
	if err != nil {
		return fail("is not the recipient of age or of a plugin")
	}
	return one, nil
}

// Newest implements keyring.Wrapper.
func (r *Recipients) Newest(context.Context) (string, error) { return r.name, nil }

// Wrap implements keyring.Wrapper.
func (r *Recipients) Wrap(ctx context.Context, _ keyring.ID, s keyring.Secret) (keyring.Wrapping,
	error) {
	data, err := r.run.encrypt(ctx, r.all, s)
	if err != nil {
		return keyring.Wrapping{}, err
	}
	return keyring.Wrapping{Name: r.name, Data: data}, nil
}

// Unwrap implements keyring.Wrapper: it always fails.
func (r *Recipients) Unwrap(context.Context, keyring.ID, keyring.Wrapping) (keyring.Secret, error) {
	return nil, turnstone.Errorf("keyring.unwrap", turnstone.KindNotFound, "",
		"the identity of the recovery recipients is not here").
		WithHint("run turn domain recover with the recovery identity")
}

// An Identities wraps with the first identity of a file that the operator has written, and unwraps
// with all. Its methods are safe for concurrent use.
type Identities struct {
	path string
	name string
	to   []age.Recipient
	by   []age.Identity
	run  *runner
}

// An Ask returns the passphrase of the file called what. The caller erases it.
type Ask func(what string) ([]byte, error)

// LoadIdentities reads a file of identities as age's tools write it: AGE-SECRET-KEY-… and
// AGE-PLUGIN-…, one on a line, as a whole encrypted with a passphrase or not. recipient is what to
// wrap for; empty: the first identity's. ask and ui may be nil. The error is of kind Invalid if
// other users can read the file or if it is malformed, and holds nothing of the file.
func LoadIdentities(path, recipient string, ask Ask, ui *plugin.ClientUI) (*Identities, error) {
	text, err := readKeyring(path, ask)
	if err != nil {
		return nil, err
	}
	defer clear(text)
	i := &Identities{path: path, name: recipient, run: newRunner()}
	ui = uiOr(ui)
	first, err := i.parse(text, ui)
	if err != nil {
		return nil, err
	}
	if recipient != "" {
		one, err := parseRecipient(recipient, ui)
		if err != nil {
			return nil, err
		}
		i.to = []age.Recipient{one}
		return i, nil
	}
	switch one := i.by[0].(type) {
	case *age.X25519Identity:
		i.name, i.to = one.Recipient().String(), []age.Recipient{one.Recipient()}
	case *age.HybridIdentity:
		i.name, i.to = nameOf(first), []age.Recipient{one.Recipient()}
	case *plugin.Identity:
		i.name, i.to = nameOf(first), []age.Recipient{one.Recipient()}
		i.name = "age-plugin-" + one.Name() + ":" + i.name
	}
	return i, nil
}

// nameOf returns a name of an identity that does not show it.
func nameOf(identity string) string {
	sum := sha256.Sum256([]byte("turnstone name of an age identity\n" + identity))
	return hex.EncodeToString(sum[:16])
}

// parse takes the identities of a file, and returns the first one's text.
func (i *Identities) parse(text []byte, ui *plugin.ClientUI) (first string, err error) {
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		var one age.Identity
		if strings.HasPrefix(line, "AGE-PLUGIN-") {
			one, err = plugin.NewIdentity(line, ui)
		} else {
			var all []age.Identity
			if all, err = age.ParseIdentities(strings.NewReader(line)); err == nil {
				one = all[0]
			}
		}
		if err != nil || len(i.by) == maxIdentities {
			return "", malformed(i.path)
		}
		if first == "" {
			first = line
		}
		i.by = append(i.by, one)
	}
	if len(i.by) == 0 {
		return "", malformed(i.path)
	}
	return first, nil
}

// maxIdentities bounds the identities of a file.
const maxIdentities = 100

func malformed(path string) error {
	return turnstone.Errorf("keyring.age", turnstone.KindInvalid, path,
		"is not a file of age identities, one on a line").
		WithHint("restore the file from a backup, or make another one with age-keygen")
}

// Newest implements keyring.Wrapper.
func (i *Identities) Newest(context.Context) (string, error) { return i.name, nil }

// Wrap implements keyring.Wrapper.
func (i *Identities) Wrap(ctx context.Context, _ keyring.ID, s keyring.Secret) (keyring.Wrapping,
	error) {
	data, err := i.run.encrypt(ctx, i.to, s)
	if err != nil {
		return keyring.Wrapping{}, err
	}
	return keyring.Wrapping{Name: i.name, Data: data}, nil
}

// Unwrap implements keyring.Wrapper.
func (i *Identities) Unwrap(ctx context.Context, _ keyring.ID, w keyring.Wrapping) (keyring.Secret,
	error) {
	s, err := i.run.decrypt(ctx, i.by, w.Data)
	if err != nil {
		return nil, unwrapError(i.path, w.Name, err)
	}
	return s, nil
}

// unwrapError is the error of an age file that the identities of a file do not open.
func unwrapError(path, name string, err error) error {
	var none *age.NoIdentityMatchError
	var typed *turnstone.Error
	switch {
	case errors.As(err, &typed):
		return err
	case errors.As(err, &none):
		return turnstone.Errorf("keyring.unwrap", turnstone.KindNotFound, path,
			"has no identity that unwraps it: it is wrapped for %.100s", name).
			WithHint("restore the file with this identity from a backup, or run turn domain recover")
	case errors.Is(err, os.ErrNotExist):
		return turnstone.NewError("keyring.unwrap", turnstone.KindNotFound, path, err)
	}
	return turnstone.Errorf("keyring.unwrap", turnstone.KindIntegrity, path,
		"what it should unwrap is damaged").
		WithHint("restore the file of the domain below domains/ from a backup")
}
