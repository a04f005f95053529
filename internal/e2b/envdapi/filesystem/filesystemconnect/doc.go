// Package filesystemconnect has the handlers and clients of E2B's service for a sandbox's files,
// generated from internal/e2b/proto.
package filesystemconnect
