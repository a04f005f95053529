package pg

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"strings"
)

// schemaParameter is the parameter of a URL that names a schema. PostgreSQL knows no such parameter.
const schemaParameter = "schema"

// In returns the URL with the schema for the data called name, such as a tenant's: prefix and the name,
// whose other characters than lower-case letters and digits are replaced. Different names have
// different schemas.
func In(s, prefix, name string) string {
	u, err := url.Parse(s)
	if err != nil {
		return s // Open reports it
	}
	q := u.Query()
	q.Set(schemaParameter, schemaFor(prefix, name))
	u.RawQuery = q.Encode()
	return u.String()
}

// Schema splits a URL into one without a schema and its schema, or otherwise.
func Schema(s, otherwise string) (without, schema string) {
	u, err := url.Parse(s)
	if err != nil {
		return s, otherwise
	}
	q := u.Query()
	if schema = q.Get(schemaParameter); schema == "" {
		return s, otherwise
	}
	q.Del(schemaParameter)
	u.RawQuery = q.Encode()
	return u.String(), schema
}

// maxSchema bounds a schema's name in bytes.
const maxSchema = 63

func schemaFor(prefix, name string) string {
	var b strings.Builder
	b.WriteString(prefix)
	for i := 0; i < len(name); i++ {
		if c := name[i]; 'a' <= c && c <= 'z' || '0' <= c && c <= '9' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "_%02x", c)
		}
	}
	if b.Len() <= maxSchema {
		return b.String()
	}
	sum := sha256.Sum256([]byte(name))
	const digits = 32
	return b.String()[:maxSchema-digits-2] + "__" + hex.EncodeToString(sum[:digits/2])
}
