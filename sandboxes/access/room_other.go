//go:build !linux

package access

// room does nothing: the system says when the disk is full.
func room(string) error { return nil }
