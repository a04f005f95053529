package relay

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"
)

// bufferSize is the size of the buffers that move bytes.
const bufferSize = 32 << 10

// A buffer is shared by all relays, and held while bytes move.
type buffer [bufferSize]byte

var buffers = sync.Pool{New: func() any { return new(buffer) }}

// A reader reads a connection without a large buffer while nothing arrives.
type reader interface {
	// next waits for bytes. They are valid until the next call.
	next() ([]byte, error)
	// release returns what the reader holds.
	release()
}

func newReader(c net.Conn) reader {
	if r := newRawReader(c); r != nil {
		return r
	}
	return &plainReader{conn: c}
}

// smallSize is what a plainReader holds while it waits.
const smallSize = 4 << 10

// linger is how long a plainReader holds a large buffer after the last bytes.
const linger = time.Second

// A plainReader reads a connection that cannot say whether it has bytes, such as one of TLS. It
// waits with a small buffer, and takes a large one while bytes fill the small one.
type plainReader struct {
	conn  net.Conn
	small [smallSize]byte
	large *buffer
}

func (r *plainReader) next() ([]byte, error) {
	for r.large != nil {
		_ = r.conn.SetReadDeadline(time.Now().Add(linger)) // an error comes from Read, too
		n, err := r.conn.Read(r.large[:])
		late := errors.Is(err, os.ErrDeadlineExceeded)
		if late {
			err = nil
		}
		p := r.large[:n]
		if n < smallSize {
			copy(r.small[:], p)
			p = r.small[:n]
			r.release()
			_ = r.conn.SetReadDeadline(time.Time{})
		}
		if n > 0 || !late {
			return p, err
		}
	}
	n, err := r.conn.Read(r.small[:])
	if n == smallSize {
		r.large = buffers.Get().(*buffer)
	}
	return r.small[:n], err
}

func (r *plainReader) release() {
	if r.large != nil {
		buffers.Put(r.large)
		r.large = nil
	}
}
