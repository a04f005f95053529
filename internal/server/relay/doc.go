// Package relay carries channels between clients and nodes. It copies bytes and reads none of them:
// the WebSocket and the channel in it end at the node. A gateway uses it to forward the HTTP
// upgrade of a client that it has authorised, and then to copy.
//
// A relay's memory is bounded: a buffer is taken when bytes arrive and returned when they are
// written, and a peer that does not read stops the copy. Both peers are untrusted: each wait has a
// limit, and nothing that the client wrote reaches the node before the node has switched protocols,
// except the key of its handshake.
package relay
