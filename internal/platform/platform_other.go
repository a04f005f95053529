//go:build !linux || turnstone_client

package platform

// Sandboxes reports whether this system runs sandboxes.
const Sandboxes = false
