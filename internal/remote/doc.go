// Package remote is the client of a server: it calls the server's services, opens channels to nodes
// and sandboxes behind it, which the server cannot read, and runs turns there, over connections that
// may be lost.
package remote
