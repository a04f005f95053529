// Package keyring keeps the keys of domains. A domain is what is sealed with one key at rest. Its
// key is on disk only wrapped: encrypted by a wrapping key, which a Wrapper holds or knows how to
// ask for. docs/keys.md describes the wrappers, rotation and recovery.
//
// A Ring creates, opens, rewraps and shreds the keys of one state directory. The packages below
// this one are the wrappers: agewrap, transit and clientkey. Package ringconfig makes a Ring from
// settings.
package keyring

import (
	"context"
	"errors"
	"fmt"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/seal"
)

// A Kind names a way to wrap keys. Kinds are part of the files below domains/.
type Kind string

// The kinds of wrappers.
const (
	KindFile     Kind = "file"       // an age identity in the state directory
	KindPlugin   Kind = "age-plugin" // an age identity that the operator's file names
	KindVault    Kind = "vault"      // a key of Vault's transit engine
	KindClient   Kind = "client"     // a key that a client sends for a while
	KindRecovery Kind = "recovery"   // age recipients whose identities are elsewhere
)

// A Wrapper encrypts small secrets with a wrapping key. Its methods are safe for concurrent use.
// Errors are a *turnstone.Error and hold nothing of a secret.
type Wrapper interface {
	// Wrap encrypts secret, the key of domain id, with the newest version of the wrapping key.
	Wrap(ctx context.Context, id ID, secret Secret) (Wrapping, error)
	// Unwrap decrypts what Wrap returned for the same domain, also with an older version of the
	// wrapping key. The caller erases the secret.
	Unwrap(ctx context.Context, id ID, w Wrapping) (Secret, error)
	// Newest returns the name that Wrap gives to wrappings now.
	Newest(ctx context.Context) (string, error)
}

// A Rotator is a Wrapper that can make a new version of its wrapping key.
type Rotator interface {
	// Rotate makes a new version and returns its name. Older versions still unwrap.
	Rotate(ctx context.Context) (string, error)
}

// A Pruner is a Wrapper that can destroy old versions of its wrapping key.
type Pruner interface {
	// Prune destroys the versions that are older than the one called oldest, and returns their
	// names.
	Prune(ctx context.Context, oldest string) ([]string, error)
	// Has reports whether a version exists, also if another process has pruned since the last call.
	Has(name string) (bool, error)
}

// A Rewrapper is a Wrapper that can wrap again without unwrapping here.
type Rewrapper interface {
	// Rewrap returns a wrapping of the same secret with the newest version of the wrapping key.
	Rewrap(ctx context.Context, id ID, w Wrapping) (Wrapping, error)
}

// A Lender is a Wrapper whose wrapping keys belong to others, who send them for a while.
type Lender interface {
	// Hold keeps a wrapping key in memory until release. The cause of the error is ErrLocked if
	// the key is not there.
	Hold(name string) (release func(), err error)
	// OnForget arranges that f is called each time after a wrapping key was forgotten. The domain
	// keys that it unwrapped are then forgotten, too.
	OnForget(f func(name string))
}

// A Wrapping is a wrapped key. It is no secret.
type Wrapping struct {
	Kind Kind `json:"kind"`
	// Name names the wrapping key and its version, such as the recipient "age1…", or
	// "transit/turnstone#3". Two wrappings of a kind with the same name have the same wrapping key.
	Name string `json:"name"`
	Data []byte `json:"data"`
}

// ErrLocked is the cause of an error if a domain's wrapping key is known and not at hand: its owner
// has to send it. It is a turnstone.ErrLocked.
var ErrLocked error = lockedError{}

type lockedError struct{}

func (lockedError) Error() string { return "the domain is locked" }

// Is makes it a turnstone.ErrLocked.
func (lockedError) Is(target error) bool { return target == turnstone.ErrLocked }

// ErrShredded is the cause of an error if the state directory has no key of the domain.
var ErrShredded = errors.New("there is no key: it was shredded, or never was here")

// subject names a domain in errors.
func subject(id ID) string { return "domain " + id.String() }

// cannotOpen is the error of a domain whose key cannot be unwrapped, with the cause's kind and
// hint.
func cannotOpen(id ID, cause error) error {
	return turnstone.Errorf("keyring.open", turnstone.KindOf(cause), subject(id),
		"its key cannot be unwrapped: %w", cause).WithHint(turnstone.HintOf(cause))
}

// keyOf takes the key of a domain out of a secret and erases the secret. An ID is derived from its
// key, so another key is detected, whatever the wrapper authenticates.
func keyOf(id ID, s Secret) (Key, error) {
	defer s.Erase()
	key, err := seal.ParseKey(s)
	if err == nil && idOf(key) != id {
		key.Erase()
		err = errors.New("it is the key of another domain")
	}
	if err != nil {
		return Key{}, turnstone.Errorf("keyring.unwrap", turnstone.KindIntegrity, subject(id),
			"what was unwrapped is not its key: %w", err).WithHint(hintDamaged)
	}
	return key, nil
}

const hintDamaged = "restore the file of this domain below domains/ from a backup"

// String does not print the data, which is long.
func (w Wrapping) String() string { return fmt.Sprintf("%s %s", w.Kind, w.Name) }
