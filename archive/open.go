package archive

import (
	"os"
	"syscall"
)

// openRegular opens a file for reading without following a link and without
// waiting for the other end of a pipe that has taken its place.
func openRegular(name string) (*os.File, error) {
	return os.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
}
