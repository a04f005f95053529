// Package gateway is the part of a server that callers connect to. It verifies tokens, limits what
// a caller takes, passes control calls on to the controller, and carries channels between clients
// and nodes.
//
// A gateway keeps nothing but the last bulletin of keys and revocations. It reads no byte of a
// channel: it imports no package that could decrypt one. It logs sizes, times and names of nodes,
// and neither tokens nor what a request says.
//
// Every caller is untrusted, with and without a token. Connections, requests at one time, sizes and
// times have limits, most of them for each address or token, so that one caller does not affect
// others.
package gateway
