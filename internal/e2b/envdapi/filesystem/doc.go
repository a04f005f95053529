// Package filesystem has the messages of E2B's service for a sandbox's files, generated from
// internal/e2b/proto.
package filesystem
