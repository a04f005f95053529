package keyring

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"turnstone.dev/turnstone"
)

// A Record is the file of a domain: its key, wrapped once for each kind. It is no secret.
type Record struct {
	Version   int        `json:"version"`
	ID        ID         `json:"id"`
	Created   time.Time  `json:"created"` // UTC, whole seconds
	Wrappings []Wrapping `json:"wrappings"`
}

// The bounds of a record.
const (
	recordVersion = 1
	maxRecord     = 64 << 10 // bytes of the file
	maxWrappings  = 8
	maxName       = 512     // bytes of a wrapping's name
	maxData       = 8 << 10 // bytes of a wrapped key
)

// encode returns the record's file.
func (r *Record) encode() ([]byte, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	b, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	if b = append(b, '\n'); len(b) > maxRecord {
		return nil, fmt.Errorf("the record has %d bytes", len(b))
	}
	return b, nil
}

// decodeRecord decodes the file of domain id. Only what encode writes is accepted.
func decodeRecord(id ID, b []byte) (*Record, error) {
	fail := func(err error) (*Record, error) {
		return nil, turnstone.Errorf("keyring.read", turnstone.KindIntegrity, subject(id),
			"the file with its wrapped key is damaged: %w", err).WithHint(hintDamaged)
	}
	if len(b) > maxRecord {
		return fail(fmt.Errorf("it has more than %d bytes", maxRecord))
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	r := &Record{}
	if err := d.Decode(r); err != nil {
		return fail(errors.New("it is not the JSON of a record"))
	}
	if r.Version > recordVersion {
		return nil, turnstone.Errorf("keyring.read", turnstone.KindUnavailable, subject(id),
			"the file with its wrapped key has version %d; this program reads version %d",
			r.Version, recordVersion).WithHint("use a newer version of turn")
	}
	again, err := r.encode()
	switch {
	case err != nil:
		return fail(err)
	case !bytes.Equal(again, b): // duplicate keys, other spellings, a tail
		return fail(errors.New("it is not in the form that turn writes"))
	case r.ID != id:
		return fail(fmt.Errorf("it is of %s", r.ID))
	}
	return r, nil
}

// check reports a record that does not keep the bounds.
func (r *Record) check() error {
	switch {
	case r.Version != recordVersion:
		return fmt.Errorf("it has version %d", r.Version)
	case r.ID.IsZero():
		return errors.New("it has no ID")
	case !r.Created.Equal(r.Created.Truncate(time.Second)) || r.Created.Location() != time.UTC ||
		r.Created.Year() < 1970 || r.Created.Year() > 9999:
		return errors.New("its time is not in whole seconds of UTC")
	case len(r.Wrappings) == 0 || len(r.Wrappings) > maxWrappings:
		return fmt.Errorf("it has %d wrappings", len(r.Wrappings))
	}
	seen := map[Kind]bool{}
	for _, w := range r.Wrappings {
		switch {
		case !slices.Contains([]Kind{KindFile, KindPlugin, KindVault, KindClient, KindRecovery},
			w.Kind):
			return fmt.Errorf("it has a wrapping of the unknown kind %.40q", w.Kind)
		case seen[w.Kind]:
			return fmt.Errorf("it has two wrappings of kind %s", w.Kind)
		case w.Name == "" || len(w.Name) > maxName || !printable(w.Name):
			return errors.New("a wrapping has no printable name")
		case len(w.Data) == 0 || len(w.Data) > maxData:
			return fmt.Errorf("a wrapping has %d bytes", len(w.Data))
		}
		seen[w.Kind] = true
	}
	return nil
}

// printable reports whether s is printable ASCII without spaces.
func printable(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// of returns the wrapping of a kind.
func (r *Record) of(kind Kind) (Wrapping, bool) {
	for _, w := range r.Wrappings {
		if w.Kind == kind {
			return w, true
		}
	}
	return Wrapping{}, false
}

// with returns a copy of r with exactly the wrappings w.
func (r *Record) with(w []Wrapping) *Record {
	c := *r
	c.Wrappings = w
	return &c
}
