// Package certificate has a node's certificate by the operator's root, which is in a file.
package certificate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/channel/attest"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/proof/key"
)

// lookEvery is the least time between two looks at the file of a certificate.
const lookEvery = time.Second

// A File is the node's certificate by the operator's root, which is in a file, and is read
// again when the file changes. It is safe for concurrent use.
type File struct {
	path, node string
	key        key.Public
	log        *slog.Logger

	mu     sync.Mutex
	text   []byte
	valid  attest.Certificate // what text says
	warned bool               // that text is out of its time
	stamp  filestamp.Stamp
	looked time.Time
	failed string // why the newest file is not in use, as it was reported
}

// Open reads the file at path; an empty path is a node without a certificate. The error is
// of kind Invalid if the certificate is not one of this node.
func Open(path, node string, k key.Public, log *slog.Logger) (*File, error) {
	c := &File{path: path, node: node, key: k, log: log}
	if path == "" {
		return c, nil
	}
	return c, c.Reload()
}

// Text returns what the node shows; nil: it has no certificate. A look at the file is at most a
// second old.
func (c *File) Text() []byte {
	if c.path == "" {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); now.Sub(c.looked) >= lookEvery || now.Before(c.looked) {
		c.looked = now
		if c.failed != "" || !c.stamp.Fresh(target(c.path)) {
			c.report(c.read())
		}
		c.warn(now)
	}
	return c.text
}

// Reload reads the file now. After an error the last certificate stays in use.
func (c *File) Reload() error {
	if c.path == "" {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.read()
}

// report logs a problem once. The caller holds mu.
func (c *File) report(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != c.failed {
		c.log.Error("the node's certificate is not in use", "error", err,
			"hint", turnstone.HintOf(err))
	}
	c.failed = text
}

// read reads the file. The caller holds mu.
func (c *File) read() error {
	// the stamp comes first: a change while the file is read is seen at the next look
	c.stamp, _ = filestamp.Quick(target(c.path))
	text, chain, err := readChain(c.path)
	if err == nil {
		err = chain.CheckNode(c.node, c.key)
	}
	if err != nil {
		return turnstone.NewError("node.certificate", turnstone.KindInvalid, c.path, err).
			WithHint("ask the operator of the root for a certificate of this node: turn host root sign")
	}
	c.warned = c.warned && bytes.Equal(text, c.text)
	c.text, c.valid = text, chain.Certificate
	c.warn(time.Now())
	return nil
}

// warn logs once that the certificate in use is out of its time, which it may be from its first day or
// become. The caller holds mu.
func (c *File) warn(now time.Time) {
	if c.warned || c.text == nil || now.Before(c.valid.Expires) && !now.Before(c.valid.Time) {
		return
	}
	c.warned = true
	c.log.Warn("clients refuse the node's certificate, which is not valid now", "path", c.path,
		"from", c.valid.Time, "until", c.valid.Expires,
		"hint", "ask the operator of the root for a new one: turn host root sign")
}

// target returns the file that links at path lead to: a mounted secret is a link, which changes.
func target(path string) string {
	if to, err := filepath.EvalSymlinks(path); err == nil {
		return to
	}
	return path
}

func readChain(path string) ([]byte, *attest.Chain, error) {
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() { // a FIFO would wait for its writer
		err = errors.New("is not a regular file")
	}
	if err != nil {
		return nil, nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, attest.MaxChain+1))
	if err != nil {
		return nil, nil, fmt.Errorf("cannot be read: %w", err)
	}
	chain, err := attest.OpenChain(context.Background(), text)
	return text, chain, err
}
