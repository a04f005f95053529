package substrate

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"time"

	"turnstone.dev/turnstone"
)

// A Determinism makes a machine deterministic: two machines with equal values of Machine run the
// same instructions, as far as the substrate's tier promises it.
type Determinism struct {
	Seed  [sha256.Size]byte // of all random numbers of the machine
	Clock time.Time         // when the machine's clock starts

	// Script is what the agent does before it answers its host, for the tier strict: the host's
	// commands, from Sandbox.configure to State.freeze. The host then sends the same commands and
	// gets the results from that time; a command that differs is an error. Empty: none.
	Script []Call `json:"-"`
	// Limit bounds the time of the script on the host; 0: an hour.
	Limit time.Duration `json:"-"`
	// Memory bounds what the machine takes of the host's memory: its own, and the disks that the
	// substrate keeps there; 0: no bound. More is an error of kind Exhausted, before the start.
	Memory turnstone.Bytes `json:"-"`
}

// A Call is a command of a script.
type Call struct {
	Method string // of the wire
	// Params are its parameters, without streams, and without the name and the text of a step.
	Params json.RawMessage
	Data   io.ReaderAt // the text of a step, or what the command's stream carries; nil: nothing
	Size   int64       // of Data, in bytes
	// Timeout bounds a step, in time of the machine; 0: no bound. The step counts as failed.
	Timeout time.Duration
	// Continue makes the steps after a failed step run. Otherwise the other commands follow.
	Continue bool
}

// StrictScratch is the serial number of the disk that stores the writes of a machine with a script:
// the host has to know it before the machine starts.
const StrictScratch = "scratch"

// ErrTimeUp is in the chain of the error of a script that has not ended within its Limit.
var ErrTimeUp = errors.New("the time was up")

// A Deterministic is a Substrate that honours Machine.Determinism.
type Deterministic interface {
	Substrate
	// Tier returns what the substrate promises of deterministic machines; empty: it has none on
	// this host.
	Tier() turnstone.Tier
}

// TierOf returns the tier of s; empty: s has no deterministic machines.
func TierOf(s Substrate) turnstone.Tier {
	if d, ok := s.(Deterministic); ok {
		return d.Tier()
	}
	return ""
}

// DeterminismOf returns what a machine needs for d; nil for nil.
func DeterminismOf(d *turnstone.Determinism) *Determinism {
	if d == nil {
		return nil
	}
	text := binary.BigEndian.AppendUint64([]byte("turnstone seed v1"), d.Seed)
	return &Determinism{Seed: sha256.Sum256(text), Clock: d.Clock}
}

// Derive returns the bytes that d has for purpose: SHA-256 of purpose, a zero byte, and the seed.
func (d *Determinism) Derive(purpose string) [sha256.Size]byte {
	return sha256.Sum256(append([]byte(purpose+"\x00"), d.Seed[:]...))
}
