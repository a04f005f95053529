// Package process has the messages of E2B's service for a sandbox's processes, generated from
// internal/e2b/proto.
package process
