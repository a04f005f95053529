// Package processconnect has the handlers and clients of E2B's service for a sandbox's processes,
// generated from internal/e2b/proto.
package processconnect
