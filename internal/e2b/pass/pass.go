// Package pass has the secrets that E2B's door gives to its callers: for each sandbox a token for its
// daemon and one for its ports, and signatures of links to files. All are computed from one key of
// the node, so that none of them has to be kept.
package pass

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"strconv"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/channel"
)

// KeySize is the size of a Key's secret in bytes.
const KeySize = 32

// A Key makes and checks tokens. It is safe for concurrent use.
type Key struct{ secret [KeySize]byte }

// NewKey returns the key of a secret.
func NewKey(secret [KeySize]byte) *Key { return &Key{secret} }

// Purposes of tokens.
const (
	daemon  = "daemon"
	traffic = "traffic"
	client  = "client"
)

// sum returns a value that only this key makes.
func (k *Key) sum(purpose, about string) []byte {
	m := hmac.New(sha256.New, k.secret[:])
	_, _ = m.Write([]byte("turnstone e2b " + purpose + "\x00" + about))
	return m.Sum(nil)
}

// Daemon returns the token for the daemon of a sandbox: its processes and files.
func (k *Key) Daemon(id turnstone.SandboxID) string {
	return "ed_" + hex.EncodeToString(k.sum(daemon, string(id)))
}

// Traffic returns the token for the ports of a sandbox.
func (k *Key) Traffic(id turnstone.SandboxID) string {
	return "tr_" + hex.EncodeToString(k.sum(traffic, string(id)))
}

// IsDaemon reports in constant time whether a token is the one of Daemon.
func (k *Key) IsDaemon(id turnstone.SandboxID, token string) bool {
	return same(k.Daemon(id), token)
}

// IsTraffic reports in constant time whether a token is the one of Traffic.
func (k *Key) IsTraffic(id turnstone.SandboxID, token string) bool {
	return same(k.Traffic(id), token)
}

func same(want, got string) bool {
	return subtle.ConstantTimeCompare([]byte(want), []byte(got)) == 1
}

// Client returns the client key that owns the sandboxes of a tenant that were made at the door.
func (k *Key) Client(tenant string) (channel.KeyPair, error) {
	private, err := hkdf.Key(sha256.New, k.secret[:], nil, "turnstone e2b "+client+"\x00"+tenant, KeySize)
	if err != nil {
		return channel.KeyPair{}, turnstone.NewError("e2b.key", turnstone.KindInternal, "", err)
	}
	return channel.LoadKeyPair(private)
}

// Operations of links.
const (
	Read  = "read"
	Write = "write"
)

// A Link is a signed link to a file of a sandbox.
type Link struct {
	Path      string // as the client wrote it
	User      string
	Operation string // Read or Write
	Expires   string // seconds since 1970; empty: never
	Signature string
}

const signed = "v1_"

// IsSigned reports in constant time whether the holder of the daemon's token has signed a link that
// has not expired.
func (k *Key) IsSigned(id turnstone.SandboxID, l Link, now time.Time) bool {
	text := l.Path + ":" + l.Operation + ":" + l.User + ":" + k.Daemon(id)
	if l.Expires != "" {
		text += ":" + l.Expires
	}
	sum := sha256.Sum256([]byte(text))
	ok := same(signed+base64.RawStdEncoding.EncodeToString(sum[:]), l.Signature)
	if !ok || l.Expires == "" {
		return ok
	}
	until, err := strconv.ParseInt(l.Expires, 10, 64)
	return err == nil && now.Unix() < until
}
