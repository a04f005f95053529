// Package kept has what a node keeps of sandboxes and snapshots beside what they keep of themselves:
// whose they are, and what was asked for. Each has a file in a folder of its tenant.
package kept

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/channel/attest"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/proof/key"
)

// A Sandbox is what the node keeps of a sandbox. Its file is older than the sandbox, and stays until
// the sandbox is removed.
type Sandbox struct {
	Version int                 `json:"version"`
	ID      turnstone.SandboxID `json:"id"`
	Request turnstone.Digest    `json:"request"` // of the request that made it
	Holder
	Metadata map[string]string   `json:"metadata,omitempty"`
	Managed  string              `json:"managed_by,omitempty"` // of the request; a fork has none
	Context  string              `json:"context,omitempty"`    // name of its session
	Session  turnstone.SessionID `json:"session,omitempty"`
	From     string              `json:"from,omitempty"` // ID of the snapshot that it started from
	Ports    []Port              `json:"ports,omitempty"`
}

// A Port is a port of a sandbox that the node exposes.
type Port struct {
	Port    uint16    `json:"port"`    // in the sandbox
	Address string    `json:"address"` // where the node listened when it was exposed
	Expires time.Time `json:"expires,omitzero"`
}

// A Snapshot is what the node keeps of a snapshot, whose machine is in the folder machine beside it.
type Snapshot struct {
	Version int              `json:"version"`
	ID      string           `json:"id"`
	Request turnstone.Digest `json:"request"`
	Holder
	Sandbox   turnstone.SandboxID    `json:"sandbox"` // that it was taken of
	Image     string                 `json:"image"`
	Root      turnstone.Digest       `json:"root,omitempty"`
	Shape     turnstone.Shape        `json:"shape"`
	Network   *turnstone.NetworkSpec `json:"network,omitempty"`
	Substrate string                 `json:"substrate"`
	Secrets   []string               `json:"secrets,omitempty"` // names of those in its memory
	Size      int64                  `json:"size"`              // bytes on the disk
	Created   time.Time              `json:"created"`
	Program   string                 `json:"program,omitempty"` // its version; empty: unknown
}

// A Holder is the keys that may open the channel of a sandbox, and of what is made of it.
type Holder struct {
	Client channel.PublicKey `json:"client"`
	// Open: it was made without a client's key, and everybody of the tenant may use it.
	Open     bool       `json:"open,omitempty"`
	Owner    string     `json:"owner,omitempty"`  // signs grants; empty: nobody
	Number   uint64     `json:"number,omitempty"` // of the newest grant
	Admitted []Admitted `json:"admitted,omitempty"`
}

// An Admitted is a key that the owner admitted.
type Admitted struct {
	Client  channel.PublicKey `json:"client"`
	Expires time.Time         `json:"expires"`
}

const (
	version     = 1
	maxRecord   = 256 << 10 // bytes
	maxAdmitted = 64
)

// May returns nil if a key may open the channel. The error is of kind Invalid otherwise.
func (h *Holder) May(client channel.PublicKey, now time.Time) error {
	if h.Open || h.Client == client || slices.ContainsFunc(h.Admitted, func(a Admitted) bool {
		return a.Client == client && now.Before(a.Expires)
	}) {
		return nil
	}
	return turnstone.Errorf("sandbox.attest", turnstone.KindInvalid, "the client's key",
		"is none of the sandbox's, which belongs to another client key").
		WithHint("use the key that created the sandbox, or bring a grant of its owner")
}

// Until returns when the right of a client ends that the owner has admitted; zero: with the sandbox.
func (h *Holder) Until(client channel.PublicKey) time.Time {
	if h.Open || h.Client == client {
		return time.Time{}
	}
	for _, a := range h.Admitted {
		if a.Client == client {
			return a.Expires
		}
	}
	return time.Time{}
}

// Withdrawn returns the client that was admitted before, and is not now; nil: there is none. A grant
// names one client.
func (h *Holder) Withdrawn(before []Admitted, now time.Time) *channel.PublicKey {
	for _, a := range before {
		if now.Before(a.Expires) && h.May(a.Client, now) != nil {
			return &a.Client
		}
	}
	return nil
}

// Admit lets a grant of the owner take effect. A grant that is in effect changes nothing.
func (h *Holder) Admit(ctx context.Context, id turnstone.SandboxID, grant []byte,
	now time.Time) (changed bool, err error) {
	g, err := attest.OpenGrant(ctx, grant)
	if err != nil {
		return false, err
	}
	owner, bad := key.Parse(h.Owner)
	signer, err := key.Parse(g.Signer)
	switch {
	case bad != nil || err != nil || !owner.Equal(signer) || g.Sandbox != id:
		return false, channel.Fail("sandbox.admit", channel.FaultForged, "the grant",
			"is not signed by the sandbox's owner")
	case !now.Before(g.Expires) || now.Add(time.Minute).Before(g.Time):
		return false, channel.Fail("sandbox.admit", channel.FaultExpired, "the grant",
			"is valid from %s to %s", g.Time.Format(time.RFC3339), g.Expires.Format(time.RFC3339))
	case len(g.Scopes) > 0 && !slices.Contains(g.Scopes, attest.ScopeWrite):
		return false, turnstone.Errorf("sandbox.admit", turnstone.KindInvalid, "the grant",
			"has no scope write, and a sandbox's channel can do everything in it")
	case g.Number == h.Number && h.May(g.Client, now) == nil:
		return false, nil
	case g.Number <= h.Number:
		return false, channel.Fail("sandbox.admit", channel.FaultReplayed, "the grant",
			"is number %d, and number %d was used", g.Number, h.Number)
	}
	h.Number = g.Number
	h.Admitted = slices.DeleteFunc(slices.Clone(h.Admitted), func(a Admitted) bool {
		return a.Client == g.Client || !now.Before(a.Expires)
	})
	if len(g.Scopes) == 0 {
		return true, nil
	}
	if len(h.Admitted) == maxAdmitted {
		return false, turnstone.Errorf("sandbox.admit", turnstone.KindExhausted, "sandbox "+string(id),
			"admits %d keys already", maxAdmitted)
	}
	h.Admitted = append(h.Admitted, Admitted{g.Client, g.Expires})
	return true, nil
}

var (
	sandboxID  = regexp.MustCompile(`^sb_[0-9a-v]{18}$`)
	snapshotID = regexp.MustCompile(`^sn_[0-9a-v]{18}$`)
)

// Load returns what is kept in the folder dir of a sandbox; nil if nothing is. The error is of kind
// Integrity if the file is damaged.
func Load(dir string, id turnstone.SandboxID) (*Sandbox, error) {
	if !sandboxID.MatchString(string(id)) {
		return nil, nil
	}
	path, s := filepath.Join(dir, string(id)+suffix), &Sandbox{}
	err := readJSON(path, s)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil && (s.Version != version || s.ID != id) {
		err = fmt.Errorf("is of version %d, of %.40q", s.Version, s.ID)
	}
	if err != nil {
		return nil, damaged(path, err)
	}
	return s, nil
}

// suffix ends the names of the files of sandboxes.
const suffix = ".json"

// Save writes s to its file in dir, durably.
func (s *Sandbox) Save(dir string) error {
	if !sandboxID.MatchString(string(s.ID)) {
		return s.unnamed()
	}
	s.Version = version
	return writeJSON(filepath.Join(dir, string(s.ID)+suffix), s, filestamp.WriteFile)
}

// Place is Save for a sandbox that does not survive a power loss: its file survives the process, and
// is durable after Persist.
func (s *Sandbox) Place(dir string) error {
	if !sandboxID.MatchString(string(s.ID)) {
		return s.unnamed()
	}
	s.Version = version
	return writeJSON(filepath.Join(dir, string(s.ID)+suffix), s, filestamp.Replace)
}

// Persist makes the file of a sandbox durable, if there is one.
func Persist(dir string, id turnstone.SandboxID) error {
	err := filestamp.Sync(filepath.Join(dir, filepath.Base(string(id))+suffix))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (s *Sandbox) unnamed() error {
	return turnstone.Errorf("node.record", turnstone.KindInvalid, "the sandbox", "%.40q is no ID", s.ID)
}

// Forget removes the file of a sandbox, if there is one.
func Forget(dir string, id turnstone.SandboxID) error {
	err := os.Remove(filepath.Join(dir, filepath.Base(string(id))+suffix))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return damaged(string(id), err)
	}
	return nil
}

// Folder is the name of the folder of sandboxes, in what a server keeps of a tenant.
const Folder = "sandboxes"

// List returns the sandboxes that have a file in dir.
func List(dir string) ([]turnstone.SandboxID, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, damaged(dir, err)
	}
	var ids []turnstone.SandboxID
	for _, e := range entries {
		if id, ok := strings.CutSuffix(e.Name(), suffix); ok && sandboxID.MatchString(id) {
			ids = append(ids, turnstone.SandboxID(id))
		}
	}
	return ids, nil
}

func readJSON(path string, v any) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if info.Size() > maxRecord {
		return fmt.Errorf("is longer than %d bytes", maxRecord)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("has more than one value")
	}
	return nil
}

// writeJSON replaces a file, durably.
func writeJSON(path string, v any, write func(string, []byte, os.FileMode) error) error {
	text, err := json.Marshal(v)
	if err == nil {
		err = write(path, text, 0o600)
	}
	if err != nil {
		return turnstone.Classify("node.record", turnstone.KindUnavailable, filepath.Base(path), err,
			"free space in the node's state directory")
	}
	return nil
}

func damaged(path string, err error) error {
	return turnstone.NewError("node.record", turnstone.KindIntegrity, filepath.Base(path), err).
		WithHint("let the node's operator look at the file in the state directory")
}
