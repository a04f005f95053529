// Package wire is the protocol that drives a sandbox: JSON messages in the manner of the Chrome
// DevTools Protocol, and binary frames for bulk data, over one byte stream. docs/wire.md describes
// the messages; the types of commands and events are generated from protocol.json.
//
// A Conn is one end of the byte stream. A program that drives a sandbox uses a Client, a Conn with
// methods that send commands together with their streams and events. A program that serves commands
// gives its Conn a Dispatcher, which maps commands to their handlers.
//
// The other end is not trusted: the sizes of its messages, streams and answers are bounded, and
// malformed input is an error. Errors are of type *turnstone.Error.
package wire
