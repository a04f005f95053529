package wire

import _ "embed"

//go:generate go run ./internal/gen

//go:embed protocol.json
var descriptor []byte

// Descriptor returns the protocol's description in the Chrome DevTools Protocol's own format, as
// served at /json/protocol. The caller may keep and change the result.
func Descriptor() []byte { return append([]byte(nil), descriptor...) }
