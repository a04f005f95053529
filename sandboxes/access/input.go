package access

import (
	"io"
	"sync"

	"turnstone.dev/turnstone"
)

const (
	// keepInput is the number of bytes of standard input that are kept after they were read for a
	// connection: more than the wire's window, which a process may not have accepted.
	keepInput = 2 << 20
	readAhead = 64 << 10
)

// An input is the standard input of a command, which connections read one after another.
type input struct {
	src io.Reader

	mu      sync.Mutex
	changed sync.Cond
	buf     []byte
	base    int64 // offset of buf's first byte
	pos     int64 // of the present connection
	turn    int   // of the present connection
	pumping bool
	closed  bool
	err     error // the end of src
}

func newInput(src io.Reader) *input {
	in := &input{src: src}
	in.changed.L = &in.mu
	return in
}

// from returns the reader of a new connection, from an offset on. The earlier readers end.
func (in *input) from(offset int64) (io.Reader, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if offset < in.base || offset > in.base+int64(len(in.buf)) {
		return nil, turnstone.Errorf("sandbox.exec", turnstone.KindIntegrity, "standard input",
			"it cannot continue at byte %d", offset)
	}
	in.pos = offset
	in.turn++
	in.changed.Broadcast()
	if !in.pumping {
		in.pumping = true
		go in.pump()
	}
	return &inputReader{in: in, turn: in.turn}, nil
}

// close ends all readers. Reading src may outlive it by one Read.
func (in *input) close() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.closed = true
	in.changed.Broadcast()
}

// pump reads src while connections take its bytes.
func (in *input) pump() {
	chunk := make([]byte, readAhead)
	for {
		n, err := in.src.Read(chunk)
		in.mu.Lock()
		in.buf = append(in.buf, chunk[:n]...)
		in.err = err
		in.changed.Broadcast()
		for !in.closed && err == nil && in.base+int64(len(in.buf))-in.pos >= readAhead {
			in.changed.Wait()
		}
		ended := in.closed || err != nil
		in.mu.Unlock()
		if ended {
			return
		}
	}
}

// An inputReader is the input for one connection.
type inputReader struct {
	in   *input
	turn int
}

// Read implements io.Reader.
func (r *inputReader) Read(p []byte) (int, error) {
	in := r.in
	in.mu.Lock()
	defer in.mu.Unlock()
	for {
		left := in.buf[min(in.pos-in.base, int64(len(in.buf))):]
		switch {
		case in.closed || r.turn != in.turn:
			return 0, io.ErrClosedPipe
		case len(left) > 0:
			n := copy(p, left)
			in.pos += int64(n)
			in.trim()
			in.changed.Broadcast()
			return n, nil
		case in.err != nil:
			return 0, in.err
		}
		in.changed.Wait()
	}
}

// trim drops what no connection can ask for, in large parts.
func (in *input) trim() {
	if old := in.pos - in.base - keepInput; old > keepInput {
		in.buf = append(in.buf[:0], in.buf[old:]...)
		in.base += old
	}
}
