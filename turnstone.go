// Package turnstone holds the vocabulary that all other packages share: the domain types, the
// identifiers, the typed error, and the reports that --json prints. It imports no other package of
// the project, so every package may import it.
//
// Each term has a single meaning. A turn is a single run of a markdown document in a fresh sandbox.
// A step is a fenced shell block of the document. The receipt is the resulting document.
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

// Version is the released version of the project, without a leading "v". Nothing assigns it but the
// linker: -X turnstone.dev/turnstone.Version=VERSION, for a build that has a version of its own.
var Version = "0.1.0"

// A TurnID names a turn: "t_" and 18 characters that sort by creation time.
type TurnID string

// A SandboxID names a sandbox: "sb_" and 18 characters that sort by creation time.
type SandboxID string

// A SessionID names a session: "s_" and 18 characters that sort by creation time.
type SessionID string

// A DomainID names what is sealed with one key at rest, such as the data of a session.
type DomainID string

// NewSessionID returns a fresh SessionID.
func NewSessionID() SessionID { return SessionID("s_" + newID(time.Now())) }

// NewTurnID returns a fresh TurnID.
func NewTurnID() TurnID { return TurnID("t_" + newID(time.Now())) }

// NewSandboxID returns a fresh SandboxID.
func NewSandboxID() SandboxID { return SandboxID("sb_" + newID(time.Now())) }

// idEncoding preserves byte order in text (RFC 4648 base32hex), so that IDs sort by time.
var idEncoding = base32.NewEncoding("0123456789abcdefghijklmnopqrstuv").
	WithPadding(base32.NoPadding)

func newID(now time.Time) string {
	var b [11]byte
	var ms [8]byte
	binary.BigEndian.PutUint64(ms[:], uint64(now.UnixMilli()))
	copy(b[:6], ms[2:])
	_, _ = rand.Read(b[6:]) // documented never to fail
	return idEncoding.EncodeToString(b[:])
}

// A Digest identifies content by its SHA-256, written "sha256:<64 hex digits>".
type Digest string

// DigestBytes returns the digest of b.
func DigestBytes(b []byte) Digest {
	sum := sha256.Sum256(b)
	return Digest("sha256:" + hex.EncodeToString(sum[:]))
}

// DigestReader returns the digest of the data of r.
func DigestReader(r io.Reader) (Digest, error) {
	h := sha256.New()
	if _, err := io.Copy(h, r); err != nil {
		return "", err
	}
	return Digest("sha256:" + hex.EncodeToString(h.Sum(nil))), nil
}

// ParseDigest parses a digest. The error says what a digest must look like.
func ParseDigest(s string) (Digest, error) {
	h, ok := strings.CutPrefix(s, "sha256:")
	if _, err := hex.DecodeString(h); !ok || err != nil || len(h) != 64 || strings.ToLower(h) != h {
		return "", fmt.Errorf("malformed digest %q: want sha256: and 64 lower-case hex digits", s)
	}
	return Digest(s), nil
}

// Hex returns the hexadecimal part of d.
func (d Digest) Hex() string { return strings.TrimPrefix(string(d), "sha256:") }

// Short returns the first 12 hex digits for display.
func (d Digest) Short() string { h := d.Hex(); return h[:min(12, len(h))] }

// A Shape is the size and the network of a sandbox's machine.
type Shape struct {
	CPUs    int   `json:"cpus"`
	Memory  Bytes `json:"memory"` // guest RAM
	Disk    Bytes `json:"disk"`   // limit for the data that a turn writes
	Network bool  `json:"network"`
}

// DefaultShape is the Shape of a document that requests none.
func DefaultShape() Shape {
	return Shape{CPUs: 1, Memory: 1 << 30, Disk: 4 << 30, Network: true}
}

// Limits of a Shape: below the minimum a guest does not start; a request above the maximum is
// probably a mistake.
const (
	MinMemory Bytes = 256 << 20
	MaxMemory Bytes = 1 << 40
	MinDisk   Bytes = 16 << 20
	MaxDisk   Bytes = 16 << 40
	MaxCPUs         = 64
)

// Validate reports the first invalid value of s.
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

// A Result is a turn's outcome.
type Result string

// The results of a turn.
const (
	ResultPassed   Result = "passed"  // every step passed, was skipped by its author, or may fail
	ResultFailed   Result = "failed"  // a step failed
	ResultTimedOut Result = "timeout" // a step or the turn exceeded its time limit
	// the turn could not be completed: no substrate, dead VM, interrupted
	ResultError Result = "error"
)

// A Status is a step's outcome.
type Status string

// The statuses of a step.
const (
	StepPassed  Status = "passed"
	StepFailed  Status = "failed"
	StepTimeout Status = "timeout"
	// skipped by its author, or because an earlier step ended the turn
	StepSkipped Status = "skipped"
	StepError   Status = "error" // started and was interrupted: the VM died, the user interrupted
)

// A Lifetime defines how long a sandbox lives.
type Lifetime string

// The lifetimes of a sandbox. Empty means LifetimeTurn.
const (
	LifetimeTurn Lifetime = "turn" // each turn has its own sandbox
	// the sandbox is paused after a turn and resumes in the next turn
	LifetimeSession Lifetime = "session"
)

// A Checkpoint defines when a turn keeps what it has done so far.
type Checkpoint string

// The values of Checkpoint. Empty means CheckpointNone.
const (
	CheckpointNone Checkpoint = "none" // only at its end
	CheckpointStep Checkpoint = "step" // before each step after the first
)
