// Modes of new files where access control lists are inherited. This file is added by Turnstone's
// build.

package vfs

import "gvisor.dev/gvisor/pkg/abi/linux"

// ModeIn returns the mode of a new file in a directory whose default access control list is
// inherited, or nil: with such a list the umask does not count (umask(2)). mode is without the bits
// of the umask, and asked with them, or 0 if nobody has a umask.
func ModeIn(mode, asked linux.FileMode, inherited *PosixACL) linux.FileMode {
	if inherited == nil || asked == 0 {
		return mode
	}
	return asked
}
