package tarfiles

import (
	"os"
	"syscall"
)

// openRegular opens a file below root for reading. It does not block on a pipe that has replaced
// the file.
func openRegular(root *os.Root, name string) (*os.File, error) {
	return root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
}
