package channel

import (
	"io"
	"net"
	"testing"
)

func BenchmarkHandshake(b *testing.B) {
	e := newEnds(b)
	for b.Loop() {
		x, y := net.Pipe()
		if c, s := e.shake(b.Context(), x, y); c.err != nil || s.err != nil {
			b.Fatal(c.err, s.err)
		}
		_, _ = x.Close(), y.Close()
	}
}

// BenchmarkSeal is the work of one side, without a stream.
func BenchmarkSeal(b *testing.B) {
	client, _ := pair(b)
	client.stream = discard{}
	p := pattern(maxData)
	b.SetBytes(int64(len(p)))
	for b.Loop() {
		if _, err := client.Write(p); err != nil {
			b.Fatal(err)
		}
	}
}

type discard struct{ io.Reader }

func (discard) Write(p []byte) (int, error) { return len(p), nil }
func (discard) Close() error                { return nil }
