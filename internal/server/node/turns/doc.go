// Package turns runs turns for clients of a node: each turn belongs to a ticket, which one client
// may use once, and has a journal, which the client reads from any offset.
package turns
