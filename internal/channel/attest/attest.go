// Package attest has the statements by which a node vouches for the keys of channels: an in-toto
// statement in an envelope (DSSE) that the node's key signs. A client that verifies one knows to
// whom it speaks, whoever carried the statement. docs/decisions/0019-channel.md has the reasons.
package attest

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	intoto "github.com/in-toto/attestation/go/v1"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/proof"
	"turnstone.dev/turnstone/internal/proof/key"
)

// PredicateType is the type of the statement's predicate.
const PredicateType = "https://turnstone.dev/attestations/channel/v1"

// MaxValidity bounds the time between a statement and its expiry.
const MaxValidity = 24 * time.Hour

// skew is how much the clocks of a client and a node may differ.
const skew = time.Minute

// maxName bounds the name of a node in bytes, all of which are in nameBytes.
const (
	maxName   = 253
	nameBytes = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
)

// A Nonce is chosen by a client for each statement that it asks for.
type Nonce [32]byte

// String returns the nonce in base64.
func (n Nonce) String() string { return base64.StdEncoding.EncodeToString(n[:]) }

// MarshalText implements encoding.TextMarshaler.
func (n Nonce) MarshalText() ([]byte, error) { return []byte(n.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler. It accepts one spelling of a nonce.
func (n *Nonce) UnmarshalText(text []byte) error {
	if err := (*channel.PublicKey)(n).UnmarshalText(text); err != nil {
		return turnstone.Errorf("channel.attest", turnstone.KindInvalid, "the nonce",
			"is not base64 of %d bytes", len(n))
	}
	return nil
}

// A Statement is what a node vouches for: who has the server's key, and who may connect.
type Statement struct {
	Sandbox   turnstone.SandboxID `json:"sandbox,omitempty"` // empty: the node itself
	Node      string              `json:"node,omitempty"`    // name of the node; empty: a sandbox
	ServerKey channel.PublicKey   `json:"serverKey"`
	Clients   []channel.PublicKey `json:"clients"`         // who may connect
	Owner     string              `json:"owner,omitempty"` // "TYPE BASE64" of who may admit others
	Nonce     Nonce               `json:"nonce"`           // of the client that asked
	// Tenant is in whose name a client of the node's own channel works; empty: not known.
	Tenant string `json:"tenant,omitempty"`
	// What runs; digests are empty where they are not known.
	Template  turnstone.Digest `json:"template,omitempty"`
	Agent     turnstone.Digest `json:"agent,omitempty"`
	Substrate turnstone.Digest `json:"substrate,omitempty"`
	Time      time.Time        `json:"time"`
	Expires   time.Time        `json:"expires"`
	Signer    string           `json:"signer"` // "TYPE BASE64" of the node's key
}

// encoded is a statement as in-toto has it.
type encoded struct {
	Type          string    `json:"_type"`
	Subject       []subject `json:"subject"`
	PredicateType string    `json:"predicateType"`
	Predicate     Statement `json:"predicate"`
}

type subject struct {
	Name   string            `json:"name"`
	Digest map[string]string `json:"digest"`
}

// subjects returns the subject: the server's key, under the name of who has it.
func (s *Statement) subjects() []subject {
	return []subject{{s.About(),
		map[string]string{"sha256": turnstone.DigestBytes(s.ServerKey[:]).Hex()}}}
}

// About returns what the statement is about: a sandbox's ID, or "node:" and a name.
func (s *Statement) About() string {
	if s.Node != "" {
		return "node:" + s.Node
	}
	return string(s.Sandbox)
}

// A Signed is a statement whose signature is that of the key that it names. Check says whether to
// believe it.
type Signed struct {
	*Statement
	Digest   turnstone.Digest // of the payload: the prologue of the handshake
	Envelope []byte
	signer   key.Public
}

// Sign signs s with the node's key. It sets the signer, and cuts times to seconds. The error is of
// kind Invalid if nobody could use the statement.
func Sign(ctx context.Context, s *Statement, node *key.Signer) (*Signed, error) {
	one := *s
	one.Signer = node.String()
	one.Time = s.Time.UTC().Truncate(time.Second)
	one.Expires = s.Expires.UTC().Truncate(time.Second)
	if err := one.check(); err != nil {
		return nil, turnstone.NewError("channel.attest", turnstone.KindInvalid,
			"the statement about "+s.About(), err)
	}
	envelope, _, err := proof.Seal(ctx, proof.PayloadType, encoded{intoto.StatementTypeUri,
		one.subjects(), PredicateType, one}, node)
	if err != nil {
		return nil, err
	}
	return Open(ctx, envelope)
}

// Open decodes an untrusted envelope, which has one spelling, and checks that the key that its
// statement names has signed it. Errors have the fault FaultForged.
func Open(ctx context.Context, envelope []byte) (*Signed, error) {
	fail := func(err error) (*Signed, error) {
		return nil, channel.Fail("channel.verify", channel.FaultForged, "the attestation",
			"%w", err)
	}
	sealed, err := proof.Unseal(envelope, proof.PayloadType)
	if err != nil {
		return fail(err)
	}
	if err := proof.CheckInToto(sealed.Payload, "a channel", PredicateType); err != nil {
		return fail(err)
	}
	var e encoded
	if err := proof.Decode(sealed.Payload, &e); err != nil {
		return fail(err)
	}
	s := &e.Predicate
	if err := s.check(); err != nil {
		return fail(err)
	}
	want := s.subjects()[0]
	if len(e.Subject) != 1 || e.Subject[0].Name != want.Name ||
		e.Subject[0].Digest["sha256"] != want.Digest["sha256"] || len(e.Subject[0].Digest) != 1 {
		return fail(errors.New("its subject is not the key of its predicate"))
	}
	signer, err := key.Parse(s.Signer)
	if err != nil {
		return fail(err)
	}
	if err := sealed.Verify(ctx, signer); err != nil {
		return fail(err)
	}
	return &Signed{s, turnstone.DigestBytes(sealed.Payload), slices.Clone(envelope), signer}, nil
}

// check reports a statement that means nothing.
func (s *Statement) check() error {
	switch {
	case (s.Sandbox == "") == (s.Node == ""):
		return errors.New("it is about neither or both of a sandbox and a node")
	case len(s.About()) > maxName || outside(string(s.Sandbox)+s.Node):
		return fmt.Errorf("%.40q is no name of a sandbox or a node", s.About())
	case len(s.Tenant) > maxName || outside(s.Tenant):
		return fmt.Errorf("%.40q is no name of a tenant", s.Tenant)
	case len(s.Clients) == 0 || len(s.Clients) > channel.MaxClients:
		return fmt.Errorf("it admits %d clients, not 1 to %d", len(s.Clients), channel.MaxClients)
	case s.Nonce == Nonce{}:
		return errors.New("it has no nonce")
	case !s.Expires.After(s.Time) || s.Expires.Sub(s.Time) > MaxValidity:
		return fmt.Errorf("it is not valid for a time up to %s", MaxValidity)
	}
	for i, k := range append([]channel.PublicKey{s.ServerKey}, s.Clients...) {
		if err := k.Check(); err != nil {
			return err
		}
		if i > 0 && slices.Contains(s.Clients[:i-1], k) {
			return fmt.Errorf("it admits the client %s twice", k)
		}
	}
	for _, t := range []time.Time{s.Time, s.Expires} {
		if err := proof.CheckTime(t); err != nil {
			return err
		}
		if t.Location() != time.UTC || t.Nanosecond() != 0 {
			return errors.New("a time is not in UTC and whole seconds")
		}
	}
	for _, d := range []turnstone.Digest{s.Template, s.Agent, s.Substrate} {
		if _, err := turnstone.ParseDigest(string(d)); d != "" && err != nil {
			return err
		}
	}
	if s.Owner != "" {
		if _, err := key.Parse(s.Owner); err != nil {
			return fmt.Errorf("the owner's key: %w", err)
		}
	}
	if _, err := key.Parse(s.Signer); err != nil {
		return fmt.Errorf("the node's key: %w", err)
	}
	return nil
}

// outside reports whether a name has other bytes than nameBytes.
func outside(name string) bool {
	return strings.ContainsFunc(name, func(r rune) bool { return !strings.ContainsRune(nameBytes, r) })
}
