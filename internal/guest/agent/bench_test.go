package agent

import (
	"context"
	"net"
	"path/filepath"
	"syscall"
	"testing"

	"turnstone.dev/turnstone/wire"
)

// BenchmarkStart measures a process's start and end on this host, without a machine: over the wire,
// with both of its ends on the same CPUs, and by fork, exec and wait alone.
func BenchmarkStart(b *testing.B) {
	b.Run("wire", func(b *testing.B) {
		dir := b.TempDir()
		a, err := New(Options{RunDir: filepath.Join(dir, "run"), Cwd: dir})
		if err != nil {
			b.Fatal(err)
		}
		near, far := net.Pipe()
		served := make(chan error, 1)
		go func() { served <- a.Serve(context.Background(), far) }()
		link, err := wire.NewLink(near, true)
		if err != nil {
			b.Fatal(err)
		}
		s, err := link.Open()
		if err != nil {
			b.Fatal(err)
		}
		c := wire.NewClient(s)
		for b.Loop() {
			if _, err := c.Start(b.Context(), wire.ProcessStartParams{Argv: []string{"/bin/true"}},
				wire.Stdio{}); err != nil {
				b.Fatal(err)
			}
		}
		_ = link.Close()
		<-served
		_ = a.Close()
	})
	b.Run("alone", func(b *testing.B) {
		for b.Loop() {
			pid, err := syscall.ForkExec("/bin/true", []string{"true"},
				&syscall.ProcAttr{Files: []uintptr{0, 1, 2}})
			if err != nil {
				b.Fatal(err)
			}
			var ws syscall.WaitStatus
			for {
				if _, err := syscall.Wait4(pid, &ws, 0, nil); err != syscall.EINTR {
					break
				}
			}
		}
	})
}
