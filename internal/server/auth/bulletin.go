package auth

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"turnstone.dev/turnstone"
)

// A Revocation ends a token, or all tokens of a key, before their time. Exactly one of TokenID and
// Key is set.
type Revocation struct {
	Issuer  string    `json:"iss"`
	TokenID string    `json:"jti,omitempty"`
	Key     string    `json:"kid,omitempty"`
	Until   time.Time `json:"until,omitzero"` // the end of the token; zero: for ever
}

// check reports a revocation that matches nothing.
func (r Revocation) check() error {
	if r.Issuer == "" || (r.TokenID == "") == (r.Key == "") {
		return turnstone.Errorf("token.revoke", turnstone.KindInvalid, "the revocation",
			"does not name an issuer and either a token or a key")
	}
	if max(len(r.Issuer), len(r.TokenID), len(r.Key)) > maxText {
		return turnstone.Errorf("token.revoke", turnstone.KindInvalid, "the revocation",
			"has a name of more than %d bytes", maxText)
	}
	return nil
}

// A Bulletin is what the controller tells verifiers: the keys of its own tokens, and what is
// revoked. Numbers grow with each change.
type Bulletin struct {
	Number  uint64       `json:"number"`
	Keys    []OwnKey     `json:"keys"`
	Revoked []Revocation `json:"revoked,omitempty"`
}

// Bounds of a bulletin.
const (
	MaxRevoked  = 20_000
	MaxBulletin = 16 << 20 // bytes, encoded
)

// Encode returns the bulletin as JSON.
func (b Bulletin) Encode() ([]byte, error) {
	if err := b.check(); err != nil {
		return nil, turnstone.NewError("auth.bulletin", turnstone.KindInvalid, "bulletin", err)
	}
	return json.Marshal(b)
}

// DecodeBulletin is the reverse of Encode. The error is of kind Integrity.
func DecodeBulletin(text []byte) (b Bulletin, err error) {
	if len(text) > MaxBulletin {
		err = fmt.Errorf("has %d bytes; the limit is %d", len(text), MaxBulletin)
	} else if err = unique(text); err == nil {
		if json.Unmarshal(text, &b) != nil {
			err = errors.New("is malformed")
		} else {
			err = b.check()
		}
	}
	if err != nil {
		return Bulletin{}, turnstone.NewError("auth.bulletin", turnstone.KindIntegrity, "bulletin",
			err)
	}
	return b, nil
}

func (b Bulletin) check() error {
	if len(b.Revoked) > MaxRevoked {
		return fmt.Errorf("revokes %d tokens and keys; the limit is %d", len(b.Revoked), MaxRevoked)
	}
	for _, r := range b.Revoked {
		if err := r.check(); err != nil {
			return err
		}
	}
	return checkOwnKeys(b.Keys)
}

// A board is a bulletin as verifiers look things up in it. It does not change.
type board struct {
	number  uint64
	keys    map[string]OwnKey
	revoked map[Revocation]time.Time // without Until, which is the value
	got     moment                   // when it was confirmed last
}

func (b Bulletin) board(now moment) *board {
	x := &board{number: b.Number, keys: map[string]OwnKey{}, revoked: map[Revocation]time.Time{},
		got: now}
	for _, k := range b.Keys {
		x.keys[k.ID] = k
	}
	for _, r := range b.Revoked {
		until := r.Until
		r.Until = time.Time{}
		x.revoked[r] = until
	}
	return x
}

// ends reports a token that is revoked itself or with its key.
func (x *board) ends(issuer, id, kid string) error {
	switch {
	case x.has(Revocation{Issuer: issuer, TokenID: id}):
		return refuse("auth.verify", Revoked, "is revoked")
	case x.has(Revocation{Issuer: issuer, Key: kid}):
		return refuse("auth.verify", Revoked, "is of a key that is revoked")
	}
	return nil
}

// has reports a revocation, which has no Until.
func (x *board) has(r Revocation) bool {
	_, has := x.revoked[r]
	return has
}

// lacks returns how many revocations of an earlier board are gone that are not over.
func (x *board) lacks(earlier *board, now time.Time) (n int) {
	for r, until := range earlier.revoked {
		if !x.has(r) && (until.IsZero() || now.Before(until)) {
			n++
		}
	}
	return n
}
