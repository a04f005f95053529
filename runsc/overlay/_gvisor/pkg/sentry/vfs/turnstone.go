// The order of file systems. This file is added by Turnstone's build.

package vfs

import (
	"maps"
	"slices"
)

// typeNames returns the names of file systems in an order that is always the same.
func typeNames(types map[string]*registeredFilesystemType) []string {
	return slices.Sorted(maps.Keys(types))
}
