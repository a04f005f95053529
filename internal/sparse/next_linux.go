package sparse

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Next returns the first run of data in f from off on; an empty run at the end of f (lseek(2), SEEK_DATA).
// It moves f's offset.
func Next(f *os.File, off int64) (data, hole int64, err error) {
	data, err = unix.Seek(int(f.Fd()), off, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) {
		return 0, 0, nil
	}
	if err == nil {
		hole, err = unix.Seek(int(f.Fd()), data, unix.SEEK_HOLE)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("seek: %w", err)
	}
	return data, hole, nil
}
