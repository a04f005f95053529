//go:build unix

package sandboxcmd

import (
	"os"
	"os/signal"
	"syscall"
)

// notifyResize sends to c when the terminal's size changes.
func notifyResize(c chan<- os.Signal) { signal.Notify(c, syscall.SIGWINCH) }
