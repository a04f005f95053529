//go:build !linux

package statedir

import "turnstone.dev/turnstone"

// Memory returns an error of kind Unavailable: sessions are sealed on Linux only.
func (h *Dir) Memory(...string) (string, error) {
	return "", turnstone.Errorf("home.memory", turnstone.KindUnavailable, h.Root,
		"sealed sessions need Linux")
}

// HasMemory returns false.
func (h *Dir) HasMemory() bool { return false }

// ForgetMemory does nothing: there is no folder in memory.
func (h *Dir) ForgetMemory(...string) error { return nil }
