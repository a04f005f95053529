package wire

import (
	"context"
	"errors"
	"net"
	"testing"

	"turnstone.dev/turnstone"
)

// TestPost checks that a command is carried out though nobody waits for it, and its connection is
// closed after it; and that its answer, or error, disturbs no other command.
func TestPost(t *testing.T) {
	noted := make(chan string, 10)
	client, _ := pair(t, map[string]entry{"Test.note": {func() any { return new(echoParams) },
		func(_ context.Context, _ *Conn, p any) (any, error) {
			noted <- p.(*echoParams).Text
			return map[string]string{}, nil
		}}}, nil)
	ctx := ctxFor(t)
	for _, method := range []string{"Test.note", "Test.fail", "Test.unknown"} {
		if err := client.Post(ctx, method, &echoParams{Text: "first"}); err != nil {
			t.Fatal(method, err)
		}
	}
	var answer struct{ Text string }
	if err := client.Call(ctx, "Test.echo", &echoParams{Text: "hi"}, &answer); err != nil ||
		answer.Text != "hi" {
		t.Fatal(answer, err)
	}
	if err := client.Post(ctx, "Test.note", &echoParams{Text: "last"}); err != nil {
		t.Fatal(err)
	}
	_ = client.Close()
	if one, two := <-noted, <-noted; one != "first" || two != "last" {
		t.Fatal(one, two)
	}
	if err := client.Post(ctx, "Test.note", &echoParams{}); turnstone.KindOf(err) !=
		turnstone.KindDead {
		t.Errorf("after the end: %v", err)
	}
}

// TestPostGivesUp checks that a side which reads nothing does not hold the caller.
func TestPostGivesUp(t *testing.T) {
	a, b := net.Pipe() // nobody reads b
	writing := make(chan struct{})
	client := NewConn(firstWrite{a, writing}, Options{})
	t.Cleanup(func() {
		_, _ = b.Close(), client.Close()
		client.Wait()
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- client.Post(ctx, "Test.note", &echoParams{}) }()
	<-writing
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// A firstWrite tells when its only write begins.
type firstWrite struct {
	net.Conn
	begins chan struct{}
}

func (f firstWrite) Write(p []byte) (int, error) {
	close(f.begins)
	return f.Conn.Write(p)
}
