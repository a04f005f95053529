package channel

import (
	"sync"

	"github.com/flynn/noise"
)

// A half is the cipher of one direction. The lock is held for computations only, never while the
// stream blocks, because a Read looks at the key of the other direction.
type half struct {
	mu    sync.Mutex
	state *noise.CipherState
	next  uint64 // number of the next frame: the cipher's nonce
	every uint64 // frames under one key
}

func newHalf(state *noise.CipherState) *half { return &half{state: state, every: rekeyEvery} }

// seal encrypts plain, whose memory out may share, and returns the frame's number.
func (h *half) seal(out, plain []byte) (sealed []byte, number uint64, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	sealed, err = h.state.Encrypt(out, nil, plain)
	if err != nil {
		return nil, 0, err
	}
	number = h.next
	h.advance()
	return sealed, number, nil
}

// open decrypts the next frame.
func (h *half) open(out, sealed []byte) ([]byte, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	plain, err := h.state.Decrypt(out, nil, sealed)
	if err == nil {
		h.advance()
	}
	return plain, err
}

// advance counts a frame. h.mu is held.
func (h *half) advance() {
	if h.next++; h.next%h.every == 0 {
		h.state.Rekey()
	}
}

// due returns the number of the next frame.
func (h *half) due() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.next
}

// made reports whether the frame with this number is authentic, under the current key or under the
// one that follows it.
func (h *half) made(number uint64, sealed []byte) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	period := h.next / h.every
	trial := noise.UnsafeNewCipherState(suite, h.state.UnsafeKey(), number)
	switch number / h.every {
	case period:
	case period + 1:
		trial.Rekey()
	default:
		return false
	}
	_, err := trial.Decrypt(nil, nil, sealed)
	return err == nil
}
