package owners

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/channel/attest"
	"turnstone.dev/turnstone/internal/proof/key"
)

// Bounds of an entry.
const (
	version     = 1
	maxEntry    = 64 << 10 // bytes
	maxAdmitted = 64
)

// An entry is what the file of a session has.
type entry struct {
	Version int                 `json:"version"`
	Session turnstone.SessionID `json:"session"`
	// Clients own the session. An operator's session may have admitted keys and no client.
	Clients  []channel.PublicKey `json:"clients"`
	Owner    string              `json:"owner,omitempty"`  // signs grants; empty: nobody
	Number   uint64              `json:"number,omitempty"` // of the newest grant
	Admitted []Admitted          `json:"admitted,omitempty"`
}

// decode decodes an untrusted file.
func decode(text []byte) (*entry, error) {
	if len(text) > maxEntry {
		return nil, fmt.Errorf("has more than %d bytes", maxEntry)
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	var e entry
	if err := dec.Decode(&e); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("has more than one value")
	}
	return &e, e.check()
}

func (e *entry) encode() ([]byte, error) {
	if err := e.check(); err != nil {
		return nil, turnstone.NewError("session.owner", turnstone.KindInvalid,
			"the owners of "+label(e.Session), err)
	}
	return json.Marshal(e)
}

func (e *entry) check() error {
	switch {
	case e.Version != version:
		return fmt.Errorf("is of version %d, not %d", e.Version, version)
	case !sessionID.MatchString(string(e.Session)):
		return fmt.Errorf("%.40q is no session", e.Session)
	case len(e.Clients) > channel.MaxClients:
		return fmt.Errorf("names %d owners; the limit is %d", len(e.Clients), channel.MaxClients)
	case len(e.Admitted) > maxAdmitted:
		return fmt.Errorf("admits %d keys; the limit is %d", len(e.Admitted), maxAdmitted)
	}
	for i, k := range e.Clients {
		if err := k.Check(); err != nil {
			return err
		}
		if slices.Contains(e.Clients[:i], k) {
			return fmt.Errorf("names the owner %s twice", k)
		}
	}
	if e.Owner != "" {
		if _, err := key.Parse(e.Owner); err != nil {
			return fmt.Errorf("the owner's key: %w", err)
		}
	}
	for i, a := range e.Admitted {
		if err := a.check(); err != nil {
			return err
		}
		if e.index(a.Client) != i {
			return fmt.Errorf("admits %s twice", a.Client)
		}
	}
	return nil
}

func (a Admitted) check() error {
	if len(a.Scopes) == 0 {
		return fmt.Errorf("admits %s for nothing", a.Client)
	}
	for i, s := range a.Scopes {
		if s != attest.ScopeRead && s != attest.ScopeWrite || slices.Contains(a.Scopes[:i], s) {
			return fmt.Errorf("%.40q is no scope, or there twice", s)
		}
	}
	if a.Expires.IsZero() {
		return fmt.Errorf("admits %s without an end", a.Client)
	}
	return a.Client.Check()
}

// index returns the position of a key among those that are admitted; -1: none.
func (e *entry) index(client channel.PublicKey) int {
	return slices.IndexFunc(e.Admitted, func(a Admitted) bool { return a.Client == client })
}

// has returns what a key may do.
func (e *entry) has(client channel.PublicKey, now time.Time) (n Need, ok bool) {
	if slices.Contains(e.Clients, client) {
		return Own, true
	}
	i := e.index(client)
	if i < 0 || !now.Before(e.Admitted[i].Expires) {
		return 0, false
	}
	if slices.Contains(e.Admitted[i].Scopes, attest.ScopeWrite) {
		return Write, true
	}
	return Read, true
}

// admit replaces what a key may do. Without scopes it may nothing.
func (e *entry) admit(client channel.PublicKey, scopes []attest.Scope, expires time.Time) error {
	if i := e.index(client); i >= 0 {
		e.Admitted = slices.Delete(e.Admitted, i, i+1)
	}
	if len(scopes) == 0 {
		return nil
	}
	if len(e.Admitted) == maxAdmitted {
		return turnstone.Errorf("session.admit", turnstone.KindExhausted,
			label(e.Session), "admits %d keys already", maxAdmitted).
			WithHint("withdraw what another key may first")
	}
	e.Admitted = append(e.Admitted, Admitted{client, slices.Clone(scopes),
		expires.UTC().Round(0)})
	return nil
}

func (e *entry) forgetExpired(now time.Time) {
	e.Admitted = slices.DeleteFunc(e.Admitted, func(a Admitted) bool {
		return !now.Before(a.Expires)
	})
}
