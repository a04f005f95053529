//go:build unix

package keyring

import (
	"os"
	"syscall"
)

// openNoFollow opens a file for reading. It follows no link and waits for no writer of a pipe.
func openNoFollow(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
}
