// Package turnstone holds the vocabulary that every other package shares: the
// domain types, the identifiers and the typed error. It imports nothing of the
// project, so that everything may import it.
//
// The words are fixed in one place and mean one thing everywhere: a turn is one
// markdown document run once in a fresh sandbox; a step is one fenced shell
// block of it; the receipt is the document that comes out.
package turnstone

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"strings"
	"time"
)

// Version is the released version of the project, without a leading "v".
const Version = "0.1.0"

// A TurnID names one turn: "t_" and 18 characters that sort by creation time.
type TurnID string

// A SandboxID names one sandbox: "sb_" and 18 characters that sort by creation time.
type SandboxID string

// A SessionID names one session: "s_" and 18 characters that sort by creation time.
type SessionID string

// NewSessionID returns a fresh SessionID.
func NewSessionID() SessionID { return SessionID("s_" + newID(time.Now())) }

// NewTurnID returns a fresh TurnID.
func NewTurnID() TurnID { return TurnID("t_" + newID(time.Now())) }

// NewSandboxID returns a fresh SandboxID.
func NewSandboxID() SandboxID { return SandboxID("sb_" + newID(time.Now())) }

// idEncoding keeps byte order in its text (RFC 4648 base32hex), so IDs sort by time.
var idEncoding = base32.NewEncoding("0123456789abcdefghijklmnopqrstuv").WithPadding(base32.NoPadding)

func newID(now time.Time) string {
	var b [11]byte
	var ms [8]byte
	binary.BigEndian.PutUint64(ms[:], uint64(now.UnixMilli()))
	copy(b[:6], ms[2:])
	_, _ = rand.Read(b[6:]) // documented never to fail
	return idEncoding.EncodeToString(b[:])
}

// A Digest names content by its SHA-256, written "sha256:<64 hex digits>".
type Digest string

// DigestBytes returns the digest of b.
func DigestBytes(b []byte) Digest {
	sum := sha256.Sum256(b)
	return Digest("sha256:" + hex.EncodeToString(sum[:]))
}

// DigestReader returns the digest of everything r yields.
func DigestReader(r io.Reader) (Digest, error) {
	h := sha256.New()
	if _, err := io.Copy(h, r); err != nil {
		return "", err
	}
	return Digest("sha256:" + hex.EncodeToString(h.Sum(nil))), nil
}

// ParseDigest checks that s is a well-formed digest.
func ParseDigest(s string) (Digest, error) {
	h, ok := strings.CutPrefix(s, "sha256:")
	if _, err := hex.DecodeString(h); !ok || err != nil || len(h) != 64 || strings.ToLower(h) != h {
		return "", fmt.Errorf("malformed digest %q: want sha256: and 64 lower-case hex digits", s)
	}
	return Digest(s), nil
}

// Hex returns the hexadecimal part of d.
func (d Digest) Hex() string { return strings.TrimPrefix(string(d), "sha256:") }

// Short returns the first 12 hex digits, for people.
func (d Digest) Short() string { h := d.Hex(); return h[:min(12, len(h))] }

// A Shape is the size and the connections of a sandbox's machine.
type Shape struct {
	CPUs    int   `json:"cpus"`
	Memory  Bytes `json:"memory"` // guest RAM
	Disk    Bytes `json:"disk"`   // quota of what a turn may write
	Network bool  `json:"network"`
}

// DefaultShape is what a document gets that asks for nothing.
func DefaultShape() Shape {
	return Shape{CPUs: 1, Memory: 1 << 30, Disk: 4 << 30, Network: true}
}

// Limits of a Shape: below the least a guest does not start; above the most the
// request is more likely a mistake than a wish.
const (
	MinMemory Bytes = 256 << 20
	MaxMemory Bytes = 1 << 40
	MinDisk   Bytes = 16 << 20
	MaxDisk   Bytes = 16 << 40
	MaxCPUs         = 64
)

// Validate reports the first value of s that no machine can have.
func (s Shape) Validate() error {
	switch {
	case s.CPUs < 1 || s.CPUs > MaxCPUs:
		return fmt.Errorf("cpus: %d is not between 1 and %d", s.CPUs, MaxCPUs)
	case s.Memory < MinMemory || s.Memory > MaxMemory:
		return fmt.Errorf("memory: %s is not between %s and %s", s.Memory, MinMemory, MaxMemory)
	case s.Disk < MinDisk || s.Disk > MaxDisk:
		return fmt.Errorf("disk: %s is not between %s and %s", s.Disk, MinDisk, MaxDisk)
	}
	return nil
}

// A Result is how a turn ended.
type Result string

// The results of a turn.
const (
	ResultPassed   Result = "passed"  // every step passed, or was skipped by its author, or may fail
	ResultFailed   Result = "failed"  // a step failed
	ResultTimedOut Result = "timeout" // a step or the turn ran out of time
	ResultError    Result = "error"   // the turn could not be run to its end: no substrate, dead VM, interrupted
)

// A Status is how one step ended.
type Status string

// The statuses of a step.
const (
	StepPassed  Status = "passed"
	StepFailed  Status = "failed"
	StepTimeout Status = "timeout"
	StepSkipped Status = "skipped" // by its author, or because an earlier step ended the turn
	StepError   Status = "error"   // began and was cut off: the VM died, the user interrupted
)
