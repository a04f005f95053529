package agewrap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"sync"

	"filippo.io/age"
	"filippo.io/age/armor"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/keyring"
	"turnstone.dev/turnstone/internal/proof/key"
	"turnstone.dev/turnstone/internal/statedir"
)

// A File is the keyring of a state directory: keys/rest, a file of X25519 identities in age's
// format, of which the last one wraps and all unwrap. It is made at the first Wrap. Its methods are
// safe for concurrent use, also by several processes.
type File struct {
	dir *statedir.Dir
	ask Ask
	// mayMake reports why a missing file is not made, such as that it was lost.
	mayMake func() error
	// work of a passphrase, as a power of two of scrypt's N; 0: age's default, about a second
	work int

	mu    sync.Mutex
	stamp filestamp.Stamp
	ids   []*age.X25519Identity
}

// NewFile returns the keyring of a state directory. It opens nothing. ask returns the passphrase of
// an encrypted file, and may be nil. mayMake, which may be nil, reports why a missing file may not
// be made.
func NewFile(dir *statedir.Dir, ask Ask, mayMake func() error) *File {
	return &File{dir: dir, ask: ask, mayMake: mayMake}
}

// Path returns the path of the file.
func (f *File) Path() string { return f.dir.Path("keys", "rest") }

// Format implements fmt.Formatter: identities print themselves.
func (f *File) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, "[keyring "+f.Path()+"]") }

// lock keeps other processes from changing the folder of keys.
func (f *File) lock(ctx context.Context) (*statedir.Lock, error) {
	dir, err := f.dir.MkdirAll("keys")
	if err != nil {
		return nil, turnstone.Classify("keyring.file", turnstone.KindUnavailable, dir, err, "")
	}
	return statedir.Acquire(ctx, filepath.Join(dir, "lock"), nil)
}

// load returns the identities. The error is of kind NotFound if there is no file. The caller holds
// mu.
func (f *File) load() ([]*age.X25519Identity, error) {
	if f.ids != nil && f.stamp.Fresh(f.Path()) {
		return f.ids, nil
	}
	f.ids = nil
	for n := 0; ; n++ {
		stamp, _ := filestamp.Quick(f.Path()) // a missing file is readKeyring's error
		text, err := readKeyring(f.Path(), f.ask)
		if err != nil {
			return nil, err
		}
		ids, err := parseFile(f.Path(), text)
		clear(text)
		if err != nil && n < 10 && !stamp.Fresh(f.Path()) {
			continue // another process has replaced the file, and overwritten this one
		}
		if err != nil {
			return nil, err
		}
		f.ids, f.stamp = ids, stamp
		return ids, nil
	}
}

// parseFile returns the identities of a keyring.
func parseFile(path string, text []byte) (ids []*age.X25519Identity, err error) {
	all, err := age.ParseIdentities(bytes.NewReader(text))
	if err != nil || len(all) > maxIdentities {
		return nil, malformed(path)
	}
	for _, one := range all {
		id, ok := one.(*age.X25519Identity)
		if !ok {
			return nil, turnstone.Errorf("keyring.file", turnstone.KindInvalid, path,
				"has an identity that is not of the type X25519").
				WithHint("name a file with other identities in keys.identities, and set keys.wrap")
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// ensure is load, and makes a missing file.
func (f *File) ensure(ctx context.Context) ([]*age.X25519Identity, error) {
	ids, err := f.load()
	if turnstone.KindOf(err) != turnstone.KindNotFound {
		return ids, err
	}
	l, err := f.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer l.Release()
	if ids, err = f.load(); turnstone.KindOf(err) != turnstone.KindNotFound {
		return ids, err // another process was faster
	}
	if f.mayMake != nil {
		if err := f.mayMake(); err != nil {
			return nil, err
		}
	}
	return f.add(nil, nil)
}

// add writes the file with one more identity; pass encrypts it. The caller holds mu and the lock.
func (f *File) add(ids []*age.X25519Identity, pass []byte) ([]*age.X25519Identity, error) {
	if len(ids) >= maxIdentities {
		return nil, turnstone.Errorf("keyring.file", turnstone.KindExhausted, f.Path(),
			"has %d identities already", len(ids)).
			WithHint("run turn domain rotate --prune, which removes the old ones")
	}
	id, err := age.GenerateX25519Identity()
	if err != nil {
		return nil, turnstone.NewError("keyring.file", turnstone.KindInternal, f.Path(), err)
	}
	return f.write(append(ids[:len(ids):len(ids)], id), pass)
}

// write writes the file durably; pass encrypts it. The caller holds mu and the lock.
func (f *File) write(ids []*age.X25519Identity, pass []byte) ([]*age.X25519Identity, error) {
	var text bytes.Buffer
	text.WriteString("# The keyring of a state directory of Turnstone: age identities that unwrap the keys\n" +
		"# of its domains. Who has this file and domains/ can read all. Keep a copy elsewhere.\n")
	for _, id := range ids {
		fmt.Fprintf(&text, "# public key: %s\n%s\n", id.Recipient(), id)
	}
	defer clear(text.Bytes())
	b, err := text.Bytes(), error(nil)
	if len(pass) > 0 {
		b, err = f.lockText(b, pass)
	}
	if err == nil {
		err = keyring.WriteOver(f.Path(), b, 0o600)
	}
	if err != nil {
		return nil, turnstone.Classify("keyring.file", turnstone.KindUnavailable, f.Path(), err,
			"free space on the disk of the state directory")
	}
	f.ids = nil
	if stamp, err := filestamp.Quick(f.Path()); err == nil {
		f.ids, f.stamp = ids, stamp
	}
	return ids, nil
}

// Newest implements keyring.Wrapper. Without a file it is "none".
func (f *File) Newest(context.Context) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	ids, err := f.load()
	if turnstone.KindOf(err) == turnstone.KindNotFound {
		return "none", nil
	}
	if err != nil {
		return "", err
	}
	return ids[len(ids)-1].Recipient().String(), nil
}

// Wrap implements keyring.Wrapper.
func (f *File) Wrap(ctx context.Context, _ keyring.ID, s keyring.Secret) (keyring.Wrapping, error) {
	f.mu.Lock()
	ids, err := f.ensure(ctx)
	f.mu.Unlock()
	if err != nil {
		return keyring.Wrapping{}, err
	}
	to := ids[len(ids)-1].Recipient()
	data, err := encrypt([]age.Recipient{to}, s)
	if err != nil {
		return keyring.Wrapping{}, turnstone.NewError("keyring.wrap", turnstone.KindInternal,
			f.Path(), err)
	}
	return keyring.Wrapping{Name: to.String(), Data: data}, nil
}

// Unwrap implements keyring.Wrapper.
func (f *File) Unwrap(_ context.Context, _ keyring.ID, w keyring.Wrapping) (keyring.Secret, error) {
	f.mu.Lock()
	ids, err := f.load()
	f.mu.Unlock()
	if turnstone.KindOf(err) == turnstone.KindNotFound {
		return nil, Lost(f.Path())
	}
	if err != nil {
		return nil, err
	}
	by := make([]age.Identity, 0, len(ids))
	for _, id := range ids {
		by = append(by, id)
	}
	s, err := decrypt(by, w.Data)
	if err != nil {
		return nil, unwrapError(f.Path(), w.Name, err)
	}
	return s, nil
}

// Lost is the error of a keyring that is missing, and that wraps keys.
func Lost(path string) error {
	return turnstone.Errorf("keyring.file", turnstone.KindNotFound, path,
		"is missing: the keyring that unwraps the keys of domains is lost").
		WithHint("restore the file from a backup, or run turn domain recover with the recovery identity")
}

// Rotate implements keyring.Rotator: it adds an identity. A passphrase stays. It makes a missing
// file, if it may be made.
func (f *File) Rotate(ctx context.Context) (string, error) {
	ids, err := f.change(ctx, func(ids []*age.X25519Identity, pass []byte) ([]*age.X25519Identity,
		error) {
		if ids == nil && f.mayMake != nil {
			if err := f.mayMake(); err != nil {
				return nil, err
			}
		}
		return f.add(ids, pass)
	})
	if err != nil {
		return "", err
	}
	return ids[len(ids)-1].Recipient().String(), nil
}

// Renew makes a missing file, also if it was lost.
func (f *File) Renew(ctx context.Context) error {
	_, err := f.change(ctx, func(ids []*age.X25519Identity, _ []byte) ([]*age.X25519Identity, error) {
		if ids != nil {
			return ids, nil
		}
		return f.add(nil, nil)
	})
	return err
}

// change calls do with the identities, none if there is no file, and the file's passphrase, while
// no other process changes the file.
func (f *File) change(ctx context.Context, do func(ids []*age.X25519Identity, pass []byte) (
	[]*age.X25519Identity, error)) ([]*age.X25519Identity, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	l, err := f.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer l.Release()
	var pass []byte // asked for once, and kept for writing
	defer func() { clear(pass) }()
	text, err := readKeyring(f.Path(), func(what string) (p []byte, err error) {
		if f.ask == nil {
			return nil, noPassphrase(what)
		}
		pass, err = f.ask(what)
		return bytes.Clone(pass), err
	})
	if turnstone.KindOf(err) == turnstone.KindNotFound {
		return do(nil, nil)
	}
	if err != nil {
		return nil, err
	}
	ids, err := parseFile(f.Path(), text)
	clear(text)
	if err != nil {
		return nil, err
	}
	return do(ids, pass)
}

// SetPassphrase encrypts the file with a passphrase; nil: stores it without one. It makes a missing
// file, if it may be made.
func (f *File) SetPassphrase(ctx context.Context, pass []byte) error {
	_, err := f.change(ctx, func(ids []*age.X25519Identity, _ []byte) ([]*age.X25519Identity,
		error) {
		if ids != nil {
			return f.write(ids, pass)
		}
		if f.mayMake != nil {
			if err := f.mayMake(); err != nil {
				return nil, err
			}
		}
		return f.add(nil, pass)
	})
	return err
}

// Prune implements keyring.Pruner.
func (f *File) Prune(ctx context.Context, oldest string) (gone []string, err error) {
	_, err = f.change(ctx, func(ids []*age.X25519Identity, pass []byte) ([]*age.X25519Identity,
		error) {
		for n, id := range ids {
			if id.Recipient().String() != oldest {
				continue
			}
			for _, old := range ids[:n] {
				gone = append(gone, old.Recipient().String())
			}
			if n == 0 {
				break
			}
			return f.write(ids[n:], pass)
		}
		return ids, nil
	})
	if err != nil {
		return nil, err
	}
	return gone, nil
}

// Has implements keyring.Pruner.
func (f *File) Has(name string) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	ids, err := f.load()
	if err != nil {
		return false, err
	}
	for _, id := range ids {
		if id.Recipient().String() == name {
			return true, nil
		}
	}
	return false, nil
}

// maxWork bounds the work for a passphrase, which the file says, as File.work does.
const maxWork = 20

// lockText encrypts the text of a keyring with a passphrase, as age -p -a does.
func (f *File) lockText(text, pass []byte) ([]byte, error) {
	to, err := age.NewScryptRecipient(string(pass))
	if err != nil {
		return nil, err
	}
	if f.work != 0 {
		to.SetWorkFactor(f.work)
	}
	var b bytes.Buffer
	a := armor.NewWriter(&b)
	w, err := age.Encrypt(a, to)
	if err == nil {
		_, err = w.Write(text)
	}
	if err == nil {
		err = errors.Join(w.Close(), a.Close())
	}
	return b.Bytes(), err
}

func noPassphrase(path string) error {
	return turnstone.Errorf("keyring.file", turnstone.KindInvalid, path, "needs a passphrase").
		WithHint("name a file with the passphrase in TURN_PASSPHRASE_FILE, or in keys.passphrase of the server")
}

// readKeyring returns the text of a file of identities that only its owner can read, decrypted if
// it has a passphrase. The caller erases it. The error is of kind NotFound if there is no file, and
// otherwise Invalid or Unavailable; it holds nothing of the file.
func readKeyring(path string, ask Ask) ([]byte, error) {
	b, err := key.ReadPrivate(path, "the keyring")
	if err != nil {
		return nil, err
	}
	var in io.Reader = bytes.NewReader(b)
	armored := strings.HasPrefix(string(b), armor.Header)
	if !armored && !bytes.HasPrefix(b, []byte("age-encryption.org/")) {
		return b, nil
	}
	if armored {
		in = armor.NewReader(in)
	}
	if ask == nil {
		return nil, noPassphrase(path)
	}
	pass, err := ask(path)
	if err != nil {
		return nil, err
	}
	defer clear(pass)
	wrong := func() ([]byte, error) {
		return nil, turnstone.Errorf("keyring.file", turnstone.KindInvalid, path,
			"is not opened by this passphrase").WithHint("check the passphrase")
	}
	by, err := age.NewScryptIdentity(string(pass))
	if err != nil {
		return wrong()
	}
	by.SetMaxWorkFactor(maxWork)
	r, err := age.Decrypt(in, by)
	if err != nil {
		return wrong()
	}
	text, err := io.ReadAll(io.LimitReader(r, maxText+1))
	if err != nil || len(text) > maxText {
		clear(text)
		return wrong()
	}
	return text, nil
}

// maxText bounds a keyring in bytes.
const maxText = 64 << 10
