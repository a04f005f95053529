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
	"turnstone.dev/turnstone/internal/remote/hosts"
)

// A pod's secrets are links to files that its group can read, and the operator's folder is one that
// nobody else can. secrets copies them.
type secrets struct {
	from, home string
	taken      [sha256.Size]byte // digest of the token that was copied last
}

// The files of the secret that are copied, and their places in the operator's folder. hostList takes the
// list of hosts.
var places = map[string]string{"key": "client/key", tokenName: tokenName}

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
			return s.lacks(name, err)
		}
	}
	return nil
}

// lacks is the error about a file of the secret.
func (s *secrets) lacks(name string, err error) error {
	return turnstone.NewError("operator.secrets", turnstone.KindInvalid, filepath.Join(s.from, name), err).
		WithHint("the secret has the files hosts.toml, key and token: docs/kubernetes.md")
}

// hosts takes the list of hosts, and follows it until ctx ends.
func (s *secrets) hosts(ctx context.Context, log *slog.Logger) error {
	l := &hostList{from: s.from, home: s.home}
	if _, err := l.take(ctx); err != nil {
		return s.lacks(hosts.File, err)
	}
	go l.follow(ctx, log)
	return nil
}

// copy copies a file. A token that it has copied before is left out: its successor may be there since, and
// reaches the mounted secret a minute later.
func (s *secrets) copy(name string) error {
	b, err := readSecret(filepath.Join(s.from, name))
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

// readSecret reads a file of the secret.
func readSecret(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return io.ReadAll(io.LimitReader(f, maxSecret))
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
