//go:build linux

package ownsocket

import (
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSocket: a socket answers in a folder with a short and with a long name, under another name of
// the folder too, and only its user can open it.
func TestSocket(t *testing.T) {
	for _, name := range []string{"short", strings.Repeat("long", 40)} {
		dir := filepath.Join(t.TempDir(), name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		l, err := Listen(dir, "x.sock")
		if err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(filepath.Join(dir, "x.sock")); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v", info, err)
		}
		if err := os.Rename(dir, dir+"2"); err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			Accept(l, slog.New(slog.DiscardHandler), "a connection", func(c *net.UnixConn) {
				_, _ = io.WriteString(c, "hello")
				_ = c.Close()
			})
		}()
		c, err := Dial(t.Context(), dir+"2", "x.sock")
		if err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(c); err != nil || string(text) != "hello" {
			t.Errorf("%q, %v", text, err)
		}
		_, _ = c.Close(), l.Close()
		<-done
		if l, err := Listen(dir+"2", "x.sock"); err != nil {
			t.Errorf("a socket of before is in the way: %v", err)
		} else {
			_ = l.Close()
		}
	}
}
