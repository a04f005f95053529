package archive

import (
	"os"
	"syscall"
)

// openRegular opens a file below root for reading, without waiting for the other
// end of a pipe that has taken its place.
func openRegular(root *os.Root, name string) (*os.File, error) {
	return root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
}
