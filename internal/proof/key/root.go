package key

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/crypto/ssh"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/statedir"
)

// An operator's root signs certificates of nodes, and never a turn: it is not among the keys that a
// Ring trusts. Each rotation makes another generation, in the files
//
//	keys/root-N, keys/root-N.pub
//
// of which the private one may have a passphrase.

func (r Ring) rootPath(generation int) string {
	return r.Dir.Path("keys", fmt.Sprintf("root-%d", generation))
}

// LockRoot keeps other processes from changing the operator's root, for as long as the lock is held.
// It is not the lock of the other keys.
func (r Ring) LockRoot(ctx context.Context) (*statedir.Lock, error) {
	dir, err := r.Dir.MkdirAll("keys")
	if err != nil {
		return nil, turnstone.Classify("root.lock", turnstone.KindUnavailable, dir, err, "")
	}
	return statedir.Acquire(ctx, filepath.Join(dir, "root.lock"), nil)
}

// MakeRoot makes the key of a generation of the operator's root. The caller holds LockRoot. An
// existing file is an error of kind Invalid; with aside, it is renamed and stays. Nobody can know that
// such a key is not in use: the record that does not name it may be an older copy.
func (r Ring) MakeRoot(generation int, aside bool, passphrase []byte) (*Signer, error) {
	path := r.rootPath(generation)
	_, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err == nil && !aside:
		return nil, turnstone.Errorf("root.make", turnstone.KindInvalid, path,
			"there is a key already").WithHint("move the file away if the key is not in use")
	case err == nil:
		err = setAside(path)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, turnstone.Classify("root.make", turnstone.KindUnavailable, path, err, "")
	}
	comment := "turnstone-root-" + time.Now().UTC().Format("20060102")
	s, b, err := generate(comment, passphrase)
	if err == nil {
		err = writeKey(path, b, s.Public, comment)
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// setAside renames the files of a key to names that are free. The caller holds LockRoot.
func setAside(path string) error {
	stamp := path + "." + time.Now().UTC().Format("20060102T150405Z")
	to := stamp
	for n := 1; ; n++ {
		_, err := os.Lstat(to)
		if errors.Is(err, fs.ErrNotExist) {
			break
		}
		if err != nil {
			return err
		}
		to = fmt.Sprintf("%s-%d", stamp, n)
	}
	if err := os.Rename(path+".pub", to+".pub"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Rename(path, to)
}

// RootHasPassphrase reports whether the key of a generation of the operator's root is encrypted.
func (r Ring) RootHasPassphrase(generation int) (bool, error) {
	b, err := ReadPrivate(r.rootPath(generation), "the key")
	if err != nil {
		return false, err
	}
	defer clear(b)
	_, err = ssh.ParseRawPrivateKey(b)
	var locked *ssh.PassphraseMissingError
	return errors.As(err, &locked), nil
}

// RootKey returns the key of a generation of the operator's root.
func (r Ring) RootKey(generation int) (*Signer, error) {
	s, err := Load(r.rootPath(generation), r.Ask)
	if turnstone.KindOf(err) == turnstone.KindNotFound {
		return nil, turnstone.Errorf("root.load", turnstone.KindNotFound, r.rootPath(generation),
			"the private key of the operator's root is not here").
			WithHint("restore the file from its copy")
	}
	return s, err
}
