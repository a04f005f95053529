package turns

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
)

// A journal is a file that grows while its turn runs. One goroutine writes; any number reads. What the
// disk does not take, because it is full, is in memory, for those who read the turn's end.
type journal struct {
	f *os.File

	mu     sync.Mutex
	size   int64  // with rest
	rest   []byte // what follows the file; bytes of it never change
	ended  bool
	change chan struct{} // closed when size or ended changes
}

// maxRest bounds what is in memory of a journal: its turn ends soon, because the disk is full.
const maxRest = 32 << 20

func createJournal(path string) (*journal, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	return &journal{f: f, change: make(chan struct{})}, nil
}

// Write appends p. The readers see whole writes only.
func (j *journal) Write(p []byte) (int, error) {
	n := 0
	if len(j.rest) == 0 { // size and rest grow in this goroutine only
		var err error
		if n, err = j.f.WriteAt(p, j.size); err == nil {
			j.update(func() { j.size += int64(n) })
			return n, nil
		} else if len(p)-n > maxRest {
			return n, err
		}
	} else if len(j.rest)+len(p) > maxRest {
		return 0, errors.New("the disk is full, and so is the memory for what a turn prints meanwhile")
	}
	j.update(func() {
		j.size += int64(len(p))
		j.rest = append(j.rest, p[n:]...)
	})
	return len(p), nil
}

// flush stores what is in memory, and syncs the file. It is called after the last Write.
func (j *journal) flush() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.rest) > 0 {
		if _, err := j.f.WriteAt(j.rest, j.size-int64(len(j.rest))); err != nil {
			return err
		}
		j.rest = nil
	}
	return j.f.Sync()
}

// end tells readers that nothing follows. The file stays open for them until close.
func (j *journal) end() { j.update(func() { j.ended = true }) }

func (j *journal) update(f func()) {
	j.mu.Lock()
	defer j.mu.Unlock()
	f()
	close(j.change)
	j.change = make(chan struct{})
}

// copyTo writes the journal from offset on to w, until its end, and returns its size.
func (j *journal) copyTo(ctx context.Context, w io.Writer, offset int64) (int64, error) {
	for {
		j.mu.Lock()
		size, rest, ended, change := j.size, j.rest, j.ended, j.change
		j.mu.Unlock()
		if size > offset {
			n, err := copyPart(w, j.f, rest, offset, size)
			if offset += n; err != nil {
				return size, err
			}
			continue
		}
		if ended {
			return size, nil
		}
		select {
		case <-change:
		case <-ctx.Done():
			return size, context.Cause(ctx)
		}
	}
}

// copyPart writes to w what f and then rest have from offset to size, or the first part of it.
func copyPart(w io.Writer, f io.ReaderAt, rest []byte, offset, size int64) (int64, error) {
	stored := size - int64(len(rest))
	if offset < stored {
		return io.Copy(w, io.NewSectionReader(f, offset, stored-offset))
	}
	n, err := w.Write(rest[offset-stored:])
	return int64(n), err
}
