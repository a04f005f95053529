package authority

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/channel/attest"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/proof"
	"turnstone.dev/turnstone/internal/proof/key"
)

// Bounds of a record.
const (
	maxRecord  = 4 << 20
	maxNodes   = 1024
	maxRevoked = 8192
)

// A Record is what a root has signed, without its private key.
type Record struct {
	Root    string    `json:"root"` // "TYPE BASE64"
	Epoch   uint64    `json:"epoch"`
	Nodes   []Issued  `json:"nodes,omitempty"`
	Revoked []Revoked `json:"revoked,omitempty"`
	// Successions are the envelopes that lead from the first root to this one.
	Successions []string `json:"successions,omitempty"`
}

// An Issued is a certificate that a root signed.
type Issued struct {
	Node    string    `json:"node,omitempty"`
	Key     string    `json:"key"` // "TYPE BASE64"
	Time    time.Time `json:"time"`
	Expires time.Time `json:"expires"`
}

// A Revoked is a key that gets no certificate any more.
type Revoked struct {
	Key   string    `json:"key"` // its fingerprint
	Node  string    `json:"node,omitempty"`
	Epoch uint64    `json:"epoch"` // the first in which it has none
	Time  time.Time `json:"time"`
}

// ID returns the fingerprint of the root.
func (r *Record) ID() string { return idOf(r.Root) }

// ID returns the fingerprint of the node's key.
func (i Issued) ID() string { return idOf(i.Key) }

func idOf(text string) string {
	k, err := key.Parse(text)
	if err != nil {
		return ""
	}
	return k.ID()
}

// fingerprint reports whether text has the form of a fingerprint.
func fingerprint(text string) bool {
	sum, is := strings.CutPrefix(text, "SHA256:")
	raw, err := base64.RawStdEncoding.Strict().DecodeString(sum)
	return is && err == nil && len(raw) == 32
}

// generation counts the keys that the root has had.
func (r *Record) generation() int { return len(r.Successions) + 1 }

func (a Authority) path() string { return a.Ring.Dir.Path("keys", "root.json") }

// load reads the record. The error is of kind NotFound if there is no root.
func (a Authority) load() (*Record, error) {
	b, err := key.ReadRecord(a.path(), maxRecord)
	if turnstone.KindOf(err) == turnstone.KindNotFound {
		return nil, turnstone.Errorf("root.load", turnstone.KindNotFound, "the operator's root",
			"there is none in this state directory").WithHint("turn host root make creates one")
	}
	if err != nil {
		return nil, err
	}
	r, err := decode(b)
	if err != nil {
		return nil, turnstone.NewError("root.load", turnstone.KindInvalid, a.path(), err).
			WithHint("restore the file from its copy")
	}
	return r, nil
}

// decode decodes a record. Unknown fields are an error, because the next change would drop them.
func decode(b []byte) (*Record, error) {
	r := &Record{}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(r); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("has something after its end")
	}
	return r, r.check()
}

// check reports a damaged record.
func (r *Record) check() error {
	if _, err := key.Parse(r.Root); err != nil {
		return err
	}
	if r.Epoch == 0 || r.Epoch > attest.MaxEpoch {
		return fmt.Errorf("its epoch is not between 1 and %d", attest.MaxEpoch)
	}
	if len(r.Nodes) > maxNodes || len(r.Revoked) > maxRevoked {
		return errors.New("has too many keys")
	}
	for _, n := range r.Nodes {
		if _, err := key.Parse(n.Key); err != nil {
			return err
		}
		if err := checkNode(n.Node, n.Time, n.Expires); err != nil {
			return err
		}
		if !n.Expires.After(n.Time) || r.revokes(n.ID()) {
			return fmt.Errorf("the key %s has no possible time, or is revoked", n.ID())
		}
	}
	for _, o := range r.Revoked {
		if !fingerprint(o.Key) || o.Epoch > r.Epoch {
			return fmt.Errorf("%.60q is no key that was revoked", o.Key)
		}
		if err := checkNode(o.Node, o.Time); err != nil {
			return err
		}
	}
	return nil
}

// checkNode reports a name that no node has, and times that no certificate has.
func checkNode(name string, times ...time.Time) error {
	if name != "" {
		if err := turnstone.CheckName("node", name); err != nil {
			return err
		}
	}
	for _, t := range times {
		if err := proof.CheckTime(t); err != nil {
			return err
		}
	}
	return nil
}

func (a Authority) save(r *Record) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err == nil {
		err = filestamp.WriteFile(a.path(), append(b, '\n'), 0o600)
	}
	if err != nil {
		return turnstone.Classify("root.save", turnstone.KindUnavailable, a.path(), err,
			"free some disk space, such as with turn gc")
	}
	return nil
}
