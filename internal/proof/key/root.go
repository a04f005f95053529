package key

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

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
// existing file is an error of kind Invalid unless the caller knows that nothing refers to it.
func (r Ring) MakeRoot(generation int, unused bool, passphrase []byte) (*Signer, error) {
	path := r.rootPath(generation)
	if _, err := os.Lstat(path); !unused && !errors.Is(err, fs.ErrNotExist) {
		return nil, turnstone.Errorf("root.make", turnstone.KindInvalid, path,
			"there is a key already").WithHint("move the file away if the key is not in use")
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
