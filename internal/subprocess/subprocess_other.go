//go:build !linux || turnstone_client

// Package subprocess starts programs that end with the process that starts them, on Linux.
package subprocess

// CloseOnExec does nothing: a client starts no program that runs what others wrote.
func CloseOnExec() error { return nil }
