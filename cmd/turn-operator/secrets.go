package main

import (
	"context"
	"crypto/sha256"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/filestamp"
)

// A pod's secrets are links to files that its group can read, and the operator's folder is one that
// nobody else can. secrets copies them.
type secrets struct {
	from, home string
	taken      [sha256.Size]byte // digest of the token that was copied last
}

// The files of the secret, and their places in the operator's folder.
var places = map[string]string{"hosts.toml": "hosts.toml", "key": "client/key", tokenName: tokenName}

const (
	tokenName = "token"
	// maxSecret bounds a file of the secret.
	maxSecret = 1 << 20
	// copyAgain is how long a new token in the secret waits: a kubelet takes a minute itself.
	copyAgain = 30 * time.Second
)

// take copies all files.
func (s *secrets) take() error {
	for name := range places {
		if err := s.copy(name); err != nil {
			return turnstone.NewError("operator.secrets", turnstone.KindInvalid, filepath.Join(s.from, name), err).
				WithHint("the secret has the files hosts.toml, key and token: docs/kubernetes.md")
		}
	}
	return nil
}

// copy copies a file. A token that it has copied before is left out: its successor may be there since, and
// reaches the mounted secret a minute later.
func (s *secrets) copy(name string) error {
	f, err := os.Open(filepath.Join(s.from, name))
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, maxSecret))
	if err != nil {
		return err
	}
	defer clear(b)
	sum := sha256.Sum256(b)
	if name == tokenName && sum == s.taken {
		return nil
	}
	to := filepath.Join(s.home, places[name])
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	if err := filestamp.WriteFile(to, b, 0o600); err != nil {
		return err
	}
	if name == tokenName {
		s.taken = sum
	}
	return nil
}

// tokenFile is where the token is.
func (s *secrets) tokenFile() string { return filepath.Join(s.home, places[tokenName]) }

// follow copies the token again and again until ctx ends.
func (s *secrets) follow(ctx context.Context, log *slog.Logger) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(copyAgain):
		}
		if err := s.copy(tokenName); err != nil {
			log.Warn("the token was not copied", "error", err)
		}
	}
}
