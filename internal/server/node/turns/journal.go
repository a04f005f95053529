package turns

import (
	"context"
	"io"
	"os"
	"sync"
)

// A journal is a file that grows while its turn runs. One goroutine writes; any number reads.
type journal struct {
	f *os.File

	mu     sync.Mutex
	size   int64
	ended  bool
	change chan struct{} // closed when size or ended changes
}

func createJournal(path string) (*journal, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	return &journal{f: f, change: make(chan struct{})}, nil
}

// Write appends p. The readers see whole writes only.
func (j *journal) Write(p []byte) (int, error) {
	n, err := j.f.WriteAt(p, j.size) // size changes in this goroutine only
	if err != nil {
		return n, err
	}
	j.update(func() { j.size += int64(n) })
	return n, nil
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
		size, ended, change := j.size, j.ended, j.change
		j.mu.Unlock()
		if size > offset {
			n, err := io.Copy(w, io.NewSectionReader(j.f, offset, size-offset))
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
