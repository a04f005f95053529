package receipt

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/config"
	"turnstone.dev/turnstone/internal/diskspace"
	"turnstone.dev/turnstone/internal/secret"
)

const (
	headLimit = 64 << 10 // bytes of a stream's beginning kept in memory
	tailLimit = 64 << 10 // bytes of its end
)

// capture takes one output stream: it counts and hashes all of it, keeps both ends in memory, and
// writes the whole to a file once it is too long for the receipt. A full disk does not end the
// step; the output's note reports it. It is used by one goroutine at a time.
type capture struct {
	path string // the whole output's file; empty: none
	name string // the file's name in the receipt
	live func([]byte)

	// limit bounds the bytes of the file. Later bytes are counted and hashed, but not kept: a guest
	// must not fill its host.
	limit int64
	floor config.Space // free space to leave on its disk

	head, tail []byte
	size       int64
	lines      int64
	hash       hash.Hash
	file       *os.File
	checked    int64 // size at the last check of the free space
	note       string
	kept       bool            // there is a file, and it is complete
	withheld   bool            // no part may be shown or kept
	scan       *secret.Scanner // of the masked output; nil: nothing to find
}

func newCapture(dir, shown, file string, live func([]byte)) *capture {
	c := &capture{live: live, hash: sha256.New(), limit: config.DefaultOutput}
	if dir != "" {
		c.path = filepath.Join(dir, file)
		if shown != "" {
			c.name = shown + "/" + file
		}
	}
	return c
}

// Write implements io.Writer; it never fails.
func (c *capture) Write(p []byte) (int, error) {
	if c.leaks(p) {
		c.size += int64(len(p))
		c.lines += int64(bytes.Count(p, []byte{'\n'}))
		return len(p), nil
	}
	if c.live != nil {
		c.live(p)
	}
	c.hash.Write(p)
	c.size += int64(len(p))
	c.lines += int64(bytes.Count(p, []byte{'\n'}))
	rest := p
	if room := headLimit - len(c.head); room > 0 {
		n := min(room, len(rest))
		c.head, rest = append(c.head, rest[:n]...), rest[n:]
	}
	if len(rest) > 0 {
		c.spill(rest)
		c.keepTail(rest)
	}
	return len(p), nil
}

func (c *capture) keepTail(p []byte) {
	if len(p) >= tailLimit {
		c.tail = append(c.tail[:0], p[len(p)-tailLimit:]...)
		return
	}
	if over := len(c.tail) + len(p) - tailLimit; over > 0 {
		c.tail = append(c.tail[:0], c.tail[over:]...)
	}
	c.tail = append(c.tail, p...)
}

// spill appends p to the file, which begins with the head.
func (c *capture) spill(p []byte) {
	if c.path == "" || c.note != "" {
		return
	}
	if c.size > c.limit {
		c.drop(fmt.Errorf("it is longer than %s", turnstone.Bytes(c.limit).Human()))
		return
	}
	if c.file == nil || c.size-c.checked > diskspace.CheckEvery {
		c.checked = c.size
		if err := diskspace.Room(filepath.Dir(c.path), c.floor); err != nil {
			c.drop(err)
			return
		}
	}
	if c.file == nil {
		f, err := os.OpenFile(c.path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
		if err == nil {
			_, err = f.Write(c.head)
			c.file = f
		}
		if err != nil {
			c.drop(err)
			return
		}
	}
	if _, err := c.file.Write(p); err != nil {
		c.drop(err)
	}
}

// drop removes the file: a partial output under the name of the whole would be misleading.
func (c *capture) drop(err error) {
	var pe *os.PathError
	if errors.As(err, &pe) {
		err = pe.Err
	}
	c.note = "the whole is not kept: " + err.Error()
	if c.file != nil {
		_ = c.file.Close()
		_ = os.Remove(c.path)
		c.file = nil
	}
}

// leaks reports whether the output so far, including p, contains a value: the replacement of one
// value can be a part of another.
func (c *capture) leaks(p []byte) bool {
	if c.scan == nil {
		return false
	}
	if _, _ = c.scan.Write(p); c.scan.Found() != "" && !c.withheld {
		c.withhold(c.scan.Found())
	}
	return c.withheld
}

// withhold discards the whole output, because it contains the value of the secret name.
func (c *capture) withhold(name string) {
	if c.file != nil {
		_ = c.file.Close()
		c.file = nil
	}
	if c.path != "" {
		_ = os.Remove(c.path)
	}
	c.head, c.tail, c.kept, c.withheld = nil, nil, false, true
	c.note = "not kept, because it holds the secret " + name
}

// replace replaces the whole output by text, with a note that gives the reason.
func (c *capture) replace(text, note string) {
	c.head, c.withheld, c.note = []byte(text), false, note
	c.hash = sha256.New()
	c.hash.Write(c.head)
	c.size, c.lines = int64(len(text)), int64(strings.Count(text, "\n"))
}

// whole opens the whole output, after finish; nil if it was not kept.
func (c *capture) whole() (io.ReadCloser, error) {
	if c.size == int64(len(c.head)) {
		return io.NopCloser(bytes.NewReader(c.head)), nil
	}
	if c.note != "" || c.path == "" {
		return nil, nil
	}
	return os.Open(c.path)
}

// sync makes the file durable, after finish, if there is one.
func (c *capture) sync() error {
	if c.path == "" || !c.kept {
		return nil
	}
	f, err := os.Open(c.path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// finish returns the output. An output that the receipt cannot show as a whole is then in the file.
func (c *capture) finish() document.Output {
	out := document.Output{Head: c.head, Tail: c.tail, Size: c.size, Lines: c.lines,
		Digest: turnstone.Digest("sha256:" + hex.EncodeToString(c.hash.Sum(nil)))}
	if c.withheld {
		out.Digest = "" // a short value could be guessed from it
	}
	if _, cut := out.Text(); cut && c.file == nil {
		c.spill(nil)
	}
	if c.file != nil {
		if err := c.file.Close(); err != nil {
			c.drop(err)
		} else {
			out.File, c.kept = c.name, true
		}
		c.file = nil
	}
	out.Note = c.note
	return out
}
