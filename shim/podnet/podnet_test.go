package podnet

import (
	"bytes"
	"testing"
)

// FuzzFrame checks that a hostile card's frames are read within bounds.
func FuzzFrame(f *testing.F) {
	f.Add([]byte{0, 0, 0, 1, 'x', 0, 0, 0, 2, 'a', 'b'})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, stream []byte) {
		r, buf := bytes.NewReader(stream), make([]byte, maxFrame)
		for {
			frame, err := readFrame(r, buf)
			if err != nil {
				return
			}
			if len(frame) == 0 || len(frame) > maxFrame {
				t.Fatalf("a frame of %d bytes", len(frame))
			}
		}
	})
}
