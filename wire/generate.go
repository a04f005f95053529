package wire

import _ "embed"

//go:generate go run ./internal/gen

//go:embed protocol.json
var descriptor []byte

// Descriptor returns the protocol's description in the Chrome DevTools Protocol's
// own format, as /json/protocol serves it. The caller may keep and change it.
func Descriptor() []byte { return append([]byte(nil), descriptor...) }
