package audit

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"turnstone.dev/turnstone"
)

// extension ends the names of files.
const extension = ".jsonl"

// maxLine bounds a line in bytes, far above what bound leaves.
const maxLine = 64 << 10

// files lists the names of a log's files in the order of their lines.
func files(dir string) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, turnstone.NewError("audit.read", turnstone.KindNotFound, "the audit log "+dir, err)
	}
	if err != nil {
		return nil, turnstone.Classify("audit.read", turnstone.KindUnavailable, "the audit log "+dir,
			err, "the controller's state directory")
	}
	for _, e := range entries {
		if _, ok := number(e.Name()); ok {
			names = append(names, e.Name())
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		x, _ := number(a)
		y, _ := number(b)
		if x < y {
			return -1
		}
		return 1
	})
	return names, nil
}

// number returns the number of a file's first line.
func number(name string) (uint64, bool) {
	text, ok := strings.CutSuffix(name, extension)
	n, err := strconv.ParseUint(text, 10, 64)
	return n, ok && err == nil && n > 0
}

// lines calls f with each whole line of r, without its line feed, and its number from 1. It returns
// the size of the whole lines.
func lines(r io.Reader, f func(n int, text []byte) error) (whole int64, err error) {
	in := bufio.NewReaderSize(r, maxLine)
	for n := 1; ; n++ {
		text, err := in.ReadSlice('\n')
		if errors.Is(err, io.EOF) {
			return whole, nil // of a line that is being written, or was cut
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			return whole, damaged("line "+strconv.Itoa(n), "is longer than %d bytes", maxLine)
		}
		if err != nil {
			return whole, err
		}
		if err := f(n, bytes.TrimSuffix(text, []byte("\n"))); err != nil {
			return whole, err
		}
		whole += int64(len(text))
	}
}

func parse(path string, n int, text []byte) (e Entry, err error) {
	if err := json.Unmarshal(text, &e); err != nil {
		return e, damaged(place(path, n), "is no line of an audit log: %w", err)
	}
	return e, nil
}

func place(path string, n int) string { return fmt.Sprintf("%s:%d", path, n) }

func damaged(where, format string, args ...any) error {
	return turnstone.Errorf("audit.verify", turnstone.KindIntegrity, where, format, args...).
		WithHint("compare the file with a copy; what follows a changed line cannot be verified by it")
}

// A Summary is what Verify has found.
type Summary struct {
	Files int    `json:"files"`
	Lines uint64 `json:"lines"`
	First uint64 `json:"first,omitempty"` // number of the first line; above 1: earlier files are elsewhere
	Last  uint64 `json:"last,omitempty"`
	Head  string `json:"head,omitempty"` // digest of the last line: noted elsewhere, it shows a cut end
	Known bool   `json:"known"`          // the head that was asked for is the digest of a line
}

// Read calls f with each entry of the log in dir, and verifies the chain: the error is of kind
// Integrity, and names the file and the line, if a line was changed, removed or added before the
// end. What lacks at the end shows only in a comparison with a head that was noted before: Known
// reports whether known is the digest of a line.
func Read(dir, known string, f func(Entry) error) (s Summary, err error) {
	names, err := files(dir)
	if err != nil {
		return s, err
	}
	for _, name := range names {
		if err := s.read(filepath.Join(dir, name), known, f); err != nil {
			return s, err
		}
		s.Files++
	}
	return s, nil
}

func (s *Summary) read(path, known string, f func(Entry) error) error {
	file, err := os.Open(path)
	if err != nil {
		return turnstone.Classify("audit.read", turnstone.KindUnavailable, path, err,
			"the controller's state directory")
	}
	defer func() { _ = file.Close() }()
	first, _ := number(filepath.Base(path))
	_, err = lines(file, func(n int, text []byte) error {
		e, err := parse(path, n, text)
		if err != nil {
			return err
		}
		if s.Lines == 0 {
			s.First, s.Last, s.Head = first, first-1, e.Prev
			if (first == 1) != (e.Prev == "") {
				return damaged(place(path, n), "is no first line")
			}
		}
		if n == 1 && e.Seq != first || e.Seq != s.Last+1 {
			return damaged(place(path, n), "has the number %d, not %d: lines are missing, or were "+
				"added", e.Seq, s.Last+1)
		}
		if e.Prev != s.Head {
			return damaged(place(path, n), "does not follow the line before: that line was changed, "+
				"or another was removed")
		}
		s.Lines, s.Last, s.Head = s.Lines+1, e.Seq, digest(text)
		s.Known = s.Known || s.Head == known
		return f(e)
	})
	var typed *turnstone.Error
	if err != nil && !errors.As(err, &typed) {
		err = turnstone.NewError("audit.read", turnstone.KindUnavailable, path, err)
	}
	return err
}
