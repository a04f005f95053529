//go:build !linux

package sparse

import (
	"errors"
	"os"
)

// Next fails: the other systems are clients, which send files as a whole.
func Next(*os.File, int64) (data, hole int64, err error) { return 0, 0, errors.ErrUnsupported }
