// Package platform knows which systems run sandboxes. On the others turn is a client.
//
// The build tag turnstone_client selects the files of a client on Linux too, for its tests.
package platform

import "turnstone.dev/turnstone"

// NoSandboxes returns the error of an operation that needs sandboxes, or what is stored of them, on
// a system that runs none.
func NoSandboxes(op turnstone.Op) error {
	return turnstone.Errorf(op, turnstone.KindUnavailable, "this machine",
		"sandboxes run on Linux only").WithHint("use a server: turn host add NAME URL, then turn host use NAME")
}
