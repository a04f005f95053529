package memory

import "crypto/sha256"

// A Hashing hashes a content in a goroutine of its own.
type Hashing struct {
	in  chan *Buffer
	out chan [32]byte
}

// NewHashing starts the goroutine, which Sum ends.
func NewHashing() *Hashing {
	h := &Hashing{in: make(chan *Buffer, 16), out: make(chan [32]byte, 1)}
	go func() {
		sum := sha256.New()
		for buf := range h.in {
			_, _ = sum.Write(buf.B) // documented never to fail
			buf.Release()
		}
		h.out <- [32]byte(sum.Sum(nil))
	}()
	return h
}

// Add hashes b, which it retains until then.
func (h *Hashing) Add(b *Buffer) {
	b.Retain()
	h.in <- b
}

// Sum ends the hashing and returns the digest.
func (h *Hashing) Sum() [32]byte {
	close(h.in)
	return <-h.out
}
