package config

import (
	"fmt"
	"io"
	"net/textproto"
	"os"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// maxHeaders bounds the file of Telemetry.Headers in bytes.
const maxHeaders = 64 << 10

// ReadHeaders returns the headers in the file of Headers. Empty lines and lines that begin with #
// are ignored. Errors name lines, never their text. Without a file there are none.
func (t Telemetry) ReadHeaders() (map[string]string, error) {
	if t.Headers == "" {
		return nil, nil
	}
	f, err := os.Open(t.Headers)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, maxHeaders+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxHeaders {
		return nil, fmt.Errorf("has more than %d bytes", maxHeaders)
	}
	all := map[string]string{}
	for n, line := range strings.Split(string(text), "\n") {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		name, value, ok := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		if !ok || !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
			return nil, fmt.Errorf("line %d is not NAME: VALUE", n+1)
		}
		all[textproto.CanonicalMIMEHeaderKey(name)] = value
	}
	return all, nil
}
