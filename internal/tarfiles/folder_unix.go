//go:build unix

package tarfiles

import "syscall"

// onlyFolder makes an open fail of what is no folder.
const onlyFolder = syscall.O_DIRECTORY
