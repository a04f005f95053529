package template

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/template/debian"
	"turnstone.dev/turnstone/internal/template/registry"
	"turnstone.dev/turnstone/internal/tomlnest"
)

// lockFile is the name of a lock, beside the spec.
const lockFile = "template.lock"

// maxLock bounds a template.lock, in bytes.
const maxLock = 4 << 20

const lockVersion = 1

// A Lock is the result of a build: the versions of all packages, the digests of the packages from
// pip and npm, and the FS hash of the whole. A build with a lock uses nothing else, and fails if
// its FS hash differs.
type Lock struct {
	Version int              `toml:"version" json:"version"`
	Spec    turnstone.Digest `toml:"spec" json:"spec"`       // of the spec without a lock
	FSHash  turnstone.Digest `toml:"fs_hash" json:"fs_hash"` // of all files, including the base's
	// name → version, including the base's
	Apt map[string]string     `toml:"apt" json:"apt"`
	Pip []registry.PipFile    `toml:"pip" json:"pip,omitempty"`
	Npm []registry.NpmPackage `toml:"npm" json:"npm,omitempty"`
}

// digest returns the digest of a lock; empty without a lock.
func (l *Lock) digest() turnstone.Digest {
	if l == nil {
		return ""
	}
	b, err := json.Marshal(l)
	if err != nil {
		return "" // strings and lists of strings always encode
	}
	return turnstone.DigestBytes(b)
}

// Encode returns the text of a template.lock.
func (l *Lock) Encode() ([]byte, error) {
	var b bytes.Buffer
	b.WriteString("# Written by turn template build --lock. With it beside " + specFile +
		", a build takes exactly these.\n")
	enc := toml.NewEncoder(&b)
	enc.Indent = ""
	err := enc.Encode(l)
	return b.Bytes(), err
}

// parseLock reads a template.lock. Errors are *turnstone.Error of kind Invalid.
func parseLock(b []byte) (*Lock, error) {
	failed := func(err error) error {
		return turnstone.NewError("template.lock", turnstone.KindInvalid, lockFile, err).
			WithHint("write it again with turn template build --lock")
	}
	if len(b) > maxLock {
		return nil, failed(fmt.Errorf("is larger than %d bytes", maxLock))
	}
	l := &Lock{}
	md, err := tomlnest.Decode(string(b), l)
	switch undecoded := md.Undecoded(); {
	case err != nil:
		return nil, failed(err)
	case l.Version != lockVersion:
		return nil, failed(fmt.Errorf("has version %d; this program supports %d", l.Version, lockVersion))
	case len(undecoded) > 0:
		return nil, failed(fmt.Errorf("unknown key %q", undecoded[0].String()))
	case !validDigest(l.Spec) || !validDigest(l.FSHash):
		return nil, failed(errors.New("spec and fs_hash must be digests"))
	}
	for name, version := range l.Apt {
		if !debian.ValidPackage(name) ||
			strings.ContainsFunc(version, func(r rune) bool { return r <= ' ' || r > '~' }) ||
			version == "" {
			return nil, failed(fmt.Errorf("apt: %q = %q is not a version of a package",
				name, version))
		}
	}
	for _, f := range l.Pip {
		if err := f.Check(); err != nil {
			return nil, failed(fmt.Errorf("pip: %w", err))
		}
	}
	for _, p := range l.Npm {
		if err := p.Check(); err != nil {
			return nil, failed(fmt.Errorf("npm: %w", err))
		}
	}
	return l, nil
}

// readLock reads the lock beside a spec; nil if there is none.
func readLock(dir fs.FS) (*Lock, error) {
	fi, err := fs.Stat(dir, lockFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var b []byte
	if err == nil && (!fi.Mode().IsRegular() || fi.Size() > maxLock) {
		err = fmt.Errorf("is not a regular file of at most %d bytes", maxLock)
	}
	if err == nil {
		b, err = fs.ReadFile(dir, lockFile)
	}
	if err != nil {
		return nil, turnstone.NewError("template.lock", turnstone.KindInvalid, lockFile, err)
	}
	return parseLock(b)
}

// verify checks a build's result against the lock.
func (l *Lock) verify(name string, got *Lock) error {
	if l == nil || l.FSHash == got.FSHash {
		return nil
	}
	var differ []string
	for _, p := range slices.Sorted(maps.Keys(l.Apt)) {
		if now := got.Apt[p]; now != l.Apt[p] {
			differ = append(differ, fmt.Sprintf("%s %s, now %s", p, l.Apt[p], orNone(now)))
		}
	}
	for _, p := range slices.Sorted(maps.Keys(got.Apt)) {
		if _, ok := l.Apt[p]; !ok {
			differ = append(differ, fmt.Sprintf("%s, now %s", p, got.Apt[p]))
		}
	}
	why, hint := "with the same packages",
		"change the command of the spec whose results differ between builds"
	if n := len(differ); n > 0 {
		why, hint = "other packages: "+strings.Join(differ[:min(n, 8)], "; "),
			"name a snapshot of Debian's archive with TURN_DEBIAN_MIRROR (snapshot.debian.org), "+
				"or update the lock with --lock: the archive has changed"
		if n > 8 {
			why += fmt.Sprintf(" and %d more", n-8)
		}
	}
	return turnstone.Errorf("template.lock", turnstone.KindIntegrity, lockFile,
		"the files of %s differ from the lock: FS hash %s, locked %s (%s)", name,
		got.FSHash.Short(), l.FSHash.Short(), why).
		WithHint(hint)
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}
