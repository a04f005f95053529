// Package mcpdoor serves turns, sandboxes and sessions to clients of the Model Context Protocol: the
// operations of an executor as tools, receipts and files of states as resources, and the document
// format as prompts. It knows neither where the machines are nor how a client is connected: see
// Place and the callers of New.
//
// Clients are untrusted. A document runs as one that came through a pipe, without a folder and
// without grants, so nothing of the host can be read by a document or a tool. All texts that are
// answered are bounded.
package mcpdoor
