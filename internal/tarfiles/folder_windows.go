package tarfiles

import "io/fs"

// onlyFolder has no effect: Windows has no such flag.
const onlyFolder = 0

// uidOf returns no user: Windows has no such numbers.
func uidOf(fs.FileInfo) int { return -1 }

// gidOf returns no group.
func gidOf(fs.FileInfo) int { return -1 }
