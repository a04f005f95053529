package records

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"math"
)

// Sizes of a page.
const (
	defaultPage = 50
	maxPage     = 100
)

// macSize is the size of the part of a page's token that authenticates it.
const macSize = 16

// begin checks a page and returns its size and the position before which it begins. list is what
// is listed, and its token is bound to that.
func (db *DB) begin(p Page, tenant string, list any) (size int, before int64, err error) {
	size = p.Size
	if size == 0 {
		size = defaultPage
	}
	if size < 0 || size > maxPage {
		return 0, 0, invalid("list", "the page", "has %d items; use 1 to %d", p.Size, maxPage)
	}
	if p.Token == "" {
		return size, math.MaxInt64, nil
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(p.Token)
	if err != nil || len(b) != 8+macSize || !hmac.Equal(b[8:], db.mac(b[:8], tenant, list)) {
		return 0, 0, invalid("list", "the page", "the token is not of this list").
			WithHint("use the token of the page before, with the same filter")
	}
	return size, int64(binary.BigEndian.Uint64(b)), nil
}

// token returns the token of the page that begins after a position.
func (db *DB) token(position int64, tenant string, list any) string {
	b := binary.BigEndian.AppendUint64(nil, uint64(position))
	return base64.RawURLEncoding.EncodeToString(append(b, db.mac(b, tenant, list)...))
}

func (db *DB) mac(position []byte, tenant string, list any) []byte {
	text, err := json.Marshal([]any{position, tenant, list})
	if err != nil {
		panic(err) // a filter has only texts, numbers and times that isTime accepts
	}
	h := hmac.New(sha256.New, db.secret)
	_, _ = h.Write(text) // documented never to fail
	return h.Sum(nil)[:macSize]
}
