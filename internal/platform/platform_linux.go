//go:build !turnstone_client

package platform

// Sandboxes reports whether this system runs sandboxes.
const Sandboxes = true
