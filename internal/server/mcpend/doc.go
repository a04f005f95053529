// Package mcpend is the endpoint of a server for clients of the Model Context Protocol, over
// streamable HTTP: the tools of package mcpdoor as a client of the server itself. A caller shows a
// token of the server, with which all calls to the server are made, so the endpoint may do nothing
// that the caller may not do. The caller has no key of a client: the endpoint has one for each
// subject of tokens, and what is said is in the clear within its process.
package mcpend
