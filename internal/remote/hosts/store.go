package hosts

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/proof/key"
	"turnstone.dev/turnstone/internal/statedir"
)

// Names in the folder of the client.
const (
	folder  = "client"
	keyFile = "key"
	tokens  = "tokens"
)

// A Store has the hosts of a state directory. It is safe for concurrent use, also by several
// processes.
type Store struct{ Dir *statedir.Dir }

// Load reads the list; without a file it is empty. The error is of kind Invalid if the file is
// damaged, or if others can write it.
func (s Store) Load() (*List, error) {
	path := s.Dir.Path(File)
	fail := func(err error, hint string) (*List, error) {
		return nil, turnstone.NewError("host.load", turnstone.KindInvalid, path, err).WithHint(hint)
	}
	text, err := readOwn(path)
	if errors.Is(err, fs.ErrNotExist) {
		return &List{}, nil
	}
	if err != nil {
		return fail(err, "make it a file that only you can write: chmod 600 "+path)
	}
	l, err := Parse(text)
	if err != nil {
		return fail(err, "correct the file, or remove it and add the hosts again")
	}
	return l, nil
}

// readOwn reads a file that others cannot write: it says whom to trust.
func readOwn(path string) (string, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return "", err
	}
	switch {
	case !info.Mode().IsRegular(): // a FIFO would wait for its writer
		return "", errors.New("is not a regular file")
	case runtime.GOOS != "windows" && info.Mode().Perm()&0o022 != 0:
		return "", fmt.Errorf("has mode %04o: other users can write it", info.Mode().Perm())
	}
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	return string(b), err
}

// Change changes the list with f, under a lock, and stores it atomically; an error of f stores
// nothing.
func (s Store) Change(ctx context.Context, f func(*List) error) error {
	lock, err := s.lock(ctx)
	if err != nil {
		return err
	}
	defer lock.Release()
	l, err := s.Load()
	if err != nil {
		return err
	}
	if l.Hosts == nil {
		l.Hosts = map[string]*Host{}
	}
	if err := f(l); err != nil {
		return err
	}
	path := s.Dir.Path(File)
	text, err := l.Encode()
	if err != nil {
		return turnstone.NewError("host.save", turnstone.KindInvalid, path, err).
			WithHint(turnstone.HintOf(err))
	}
	return saved(path, filestamp.WriteFile(path, text, 0o600))
}

func saved(path string, err error) error {
	if err == nil {
		return nil
	}
	return turnstone.Classify("host.save", turnstone.KindUnavailable, path, err,
		"free some disk space, such as with turn gc")
}

func (s Store) lock(ctx context.Context) (*statedir.Lock, error) {
	dir, err := s.Dir.MkdirAll(folder)
	if err != nil {
		return nil, saved(dir, err)
	}
	return statedir.Acquire(ctx, filepath.Join(dir, "lock"), nil)
}

// ClientKey returns the client's key, which is made on first use.
func (s Store) ClientKey(ctx context.Context) (channel.KeyPair, error) {
	path := s.Dir.Path(folder, keyFile)
	k, err := loadKey(path)
	if turnstone.KindOf(err) != turnstone.KindNotFound {
		return k, err
	}
	lock, err := s.lock(ctx)
	if err != nil {
		return channel.KeyPair{}, err
	}
	defer lock.Release()
	// another process may have been faster
	if k, err = loadKey(path); turnstone.KindOf(err) != turnstone.KindNotFound {
		return k, err
	}
	k = channel.NewKeyPair()
	private := k.Private()
	text := []byte(base64.StdEncoding.EncodeToString(private) + "\n")
	err = saved(path, filestamp.WriteFile(path, text, 0o600))
	clear(private)
	clear(text)
	return k, err
}

// loadKey reads a client's key. No error shows its text.
func loadKey(path string) (channel.KeyPair, error) {
	b, err := key.ReadPrivate(path, "the client's key")
	if err != nil {
		return channel.KeyPair{}, err
	}
	defer clear(b)
	private, err := base64.StdEncoding.Strict().DecodeString(strings.TrimSuffix(string(b), "\n"))
	if err == nil && len(private) != channel.KeySize {
		err = errors.New("has another length")
	}
	if err != nil {
		return channel.KeyPair{}, turnstone.Errorf("host.key", turnstone.KindInvalid, path,
			"is damaged: it is not base64 of %d bytes", channel.KeySize).
			WithHint("restore the file, or remove it: sessions of the old key are then lost to this " +
				"client")
	}
	defer clear(private)
	return channel.LoadKeyPair(private)
}

// maxToken bounds a token in bytes.
const maxToken = 16 << 10

// ReadToken reads a token from a file that only its owner can read.
func ReadToken(path string) (string, error) {
	b, err := key.ReadPrivate(path, "the token")
	if turnstone.KindOf(err) == turnstone.KindNotFound {
		return "", noFile(path)
	}
	if err != nil {
		return "", err
	}
	return cleanToken(path, string(b))
}

func cleanToken(name, text string) (string, error) {
	token := strings.TrimSpace(text)
	if token == "" || len(token) > maxToken || strings.ContainsFunc(token, func(r rune) bool {
		return r <= ' ' || r > '~'
	}) {
		return "", turnstone.Errorf("host.token", turnstone.KindInvalid, name, "has no token").
			WithHint("write what turn token create printed into the file")
	}
	return token, nil
}

// TakeToken stores the token of a host from in, and returns the file's path.
func (s Store) TakeToken(name string, in io.Reader) (string, error) {
	b, err := io.ReadAll(io.LimitReader(in, maxToken+2))
	if err != nil {
		return "", turnstone.NewError("host.token", turnstone.KindInvalid, "the input", err)
	}
	token, err := cleanToken("the input", string(b))
	if err != nil {
		return "", err
	}
	dir, err := s.Dir.MkdirAll(folder, tokens)
	path := filepath.Join(dir, name)
	if err == nil {
		err = filestamp.WriteFile(path, []byte(token+"\n"), 0o600)
	}
	return path, saved(path, err)
}

// Forget removes the token of a host that TakeToken stored.
func (s Store) Forget(h *Host) error {
	if h.TokenFile == "" || filepath.Dir(h.TokenFile) != s.Dir.Path(folder, tokens) {
		return nil // a file of the user's
	}
	if err := os.Remove(h.TokenFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return saved(h.TokenFile, err)
	}
	return nil
}
