package wire

import (
	"context"
	"io"
	"testing"

	"turnstone.dev/turnstone"
)

// brokenStream is a stream whose writes fail with a typed error, and whose reads wait.
type brokenStream struct {
	done chan struct{}
	kind turnstone.Kind
}

func (b brokenStream) Read([]byte) (int, error) { <-b.done; return 0, io.EOF }
func (b brokenStream) Write([]byte) (int, error) {
	return 0, turnstone.Errorf("channel.write", b.kind, "the channel", "failed")
}
func (b brokenStream) Close() error { return nil }

// TestTypedStreamError keeps the kind of a stream's own error: a dead channel may be opened again,
// and a manipulated one may not.
func TestTypedStreamError(t *testing.T) {
	for _, kind := range []turnstone.Kind{turnstone.KindDead, turnstone.KindIntegrity} {
		b := brokenStream{make(chan struct{}), kind}
		c := NewClient(b)
		_, err := c.SandboxGetVersion(context.Background())
		if turnstone.KindOf(err) != kind {
			t.Errorf("%s: %v", turnstone.KindOf(err), err)
		}
		close(b.done)
		_ = c.Close()
		c.Wait()
	}
}
