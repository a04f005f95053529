package hosts

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"path/filepath"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/proof/key"
)

// sealSize is the size of a key that seals a client's sessions, in bytes.
const sealSize = 32

// ReadSeal reads a key that seals sessions from a file that only its owner can read. No error shows
// the key. The caller erases it.
func ReadSeal(path string) ([]byte, error) {
	text, err := key.ReadPrivate(path, "the key that seals your sessions")
	if turnstone.KindOf(err) == turnstone.KindNotFound {
		return nil, turnstone.Errorf("host.seal", turnstone.KindInvalid, path,
			"does not exist: the key that seals your sessions is lost to this client").
			WithHint("restore the file from a backup; without it nobody can read these sessions")
	}
	if err != nil {
		return nil, err
	}
	defer clear(text)
	b, err := base64.StdEncoding.Strict().DecodeString(strings.TrimSuffix(string(text), "\n"))
	if err == nil && len(b) == sealSize {
		return b, nil
	}
	clear(b)
	return nil, turnstone.Errorf("host.seal", turnstone.KindInvalid, path,
		"is damaged: it is not base64 of %d bytes", sealSize).
		WithHint("restore the file from a backup; without it nobody can read these sessions")
}

// MakeSeal returns the path of the key that seals this client's sessions at the host called name. The
// first call makes the key.
func (s Store) MakeSeal(ctx context.Context, name string) (string, error) {
	dir, err := s.Dir.MkdirAll(folder, "seal")
	if err != nil {
		return "", saved(dir, err)
	}
	lock, err := s.lock(ctx)
	if err != nil {
		return "", err
	}
	defer lock.Release()
	path := filepath.Join(dir, name)
	b, err := key.ReadPrivate(path, "the key that seals your sessions")
	clear(b)
	if turnstone.KindOf(err) != turnstone.KindNotFound {
		return path, err
	}
	secret := make([]byte, sealSize)
	_, _ = rand.Read(secret) // documented never to fail
	text := []byte(base64.StdEncoding.EncodeToString(secret) + "\n")
	err = filestamp.WriteFile(path, text, 0o600)
	clear(secret)
	clear(text)
	return path, saved(path, err)
}
