package attest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/proof"
	"turnstone.dev/turnstone/internal/proof/key"
)

// Types of the predicates that an operator's root signs: docs/decisions/0023-operators-root.md.
const (
	CertificatePredicateType = "https://turnstone.dev/attestations/node-certificate/v1"
	SuccessionPredicateType  = "https://turnstone.dev/attestations/root-succession/v1"
)

// Bounds of certificates.
const (
	// MaxCertificateValidity bounds the time between a certificate and its expiry.
	MaxCertificateValidity = 366 * 24 * time.Hour
	MaxEpoch               = 1_000_000_000
	MaxSuccessions         = 8 // in a chain
	MaxChain               = 16 << 10
)

// A Certificate is what an operator's root says about a node's key.
type Certificate struct {
	Node string `json:"node,omitempty"` // its name; empty: any
	Key  string `json:"key"`            // "TYPE BASE64" of the node
	// Epoch never goes back: a client that has seen a later one of the root refuses this one.
	Epoch   uint64    `json:"epoch"`
	Time    time.Time `json:"time"` // from when it is valid
	Expires time.Time `json:"expires"`
	Signer  string    `json:"signer"` // "TYPE BASE64" of the root
}

func (c Certificate) about() (string, string) { return "node:" + c.Node, c.Key }
func (c Certificate) signedBy() string        { return c.Signer }

func (c Certificate) check() error {
	switch {
	case len(c.Node) > maxName || outside(c.Node):
		return fmt.Errorf("%.40q is no name of a node", c.Node)
	case c.Key == c.Signer:
		return errors.New("it is about the root's own key")
	case !c.Expires.After(c.Time) || c.Expires.Sub(c.Time) > MaxCertificateValidity:
		return fmt.Errorf("it is not valid for a time up to %s", MaxCertificateValidity)
	}
	return checkSigned(c.Epoch, []string{c.Key, c.Signer}, c.Time, c.Expires)
}

// A Succession is what an operator's root says about the root that takes its place.
type Succession struct {
	Next string `json:"next"` // "TYPE BASE64" of the new root
	// Epoch is the first of the new root, later than all of the old one.
	Epoch  uint64    `json:"epoch"`
	Time   time.Time `json:"time"`
	Signer string    `json:"signer"` // "TYPE BASE64" of the old root
}

func (s Succession) about() (string, string) { return "root", s.Next }
func (s Succession) signedBy() string        { return s.Signer }

func (s Succession) check() error {
	if s.Next == s.Signer {
		return errors.New("the root follows itself")
	}
	return checkSigned(s.Epoch, []string{s.Next, s.Signer}, s.Time)
}

// checkSigned checks what certificates and successions have in common.
func checkSigned(epoch uint64, keys []string, times ...time.Time) error {
	if epoch == 0 || epoch > MaxEpoch {
		return fmt.Errorf("its epoch is not between 1 and %d", MaxEpoch)
	}
	for _, k := range keys {
		if _, err := key.Parse(k); err != nil {
			return err
		}
	}
	for _, t := range times {
		if err := proof.CheckTime(t); err != nil {
			return err
		}
		if t.Location() != time.UTC || t.Nanosecond() != 0 {
			return errors.New("a time is not in UTC and whole seconds")
		}
	}
	return nil
}

// SignCertificate signs c with the root's key, and returns the envelope. It sets the signer, and cuts
// times to seconds. The error is of kind Invalid if nobody could use the certificate.
func SignCertificate(ctx context.Context, c Certificate, root *key.Signer) ([]byte, error) {
	c.Signer = root.String()
	c.Time, c.Expires = c.Time.UTC().Truncate(time.Second), c.Expires.UTC().Truncate(time.Second)
	return signPredicate(ctx, "the certificate", CertificatePredicateType, c, root)
}

// SignSuccession signs s with the key of the old root, as SignCertificate does.
func SignSuccession(ctx context.Context, s Succession, root *key.Signer) ([]byte, error) {
	s.Signer, s.Time = root.String(), s.Time.UTC().Truncate(time.Second)
	return signPredicate(ctx, "the succession", SuccessionPredicateType, s, root)
}

// A Chain is a node's certificate and the successions of roots that lead to the one which signed it.
// As text it has an envelope on each line: the certificate, then the successions, the oldest first.
type Chain struct {
	Certificate
	Successions []Succession
}

// JoinChain returns the text of a chain.
func JoinChain(certificate []byte, successions [][]byte) []byte {
	successions = successions[max(0, len(successions)-MaxSuccessions):]
	lines := append([][]byte{certificate}, successions...)
	return append(bytes.Join(lines, []byte("\n")), '\n')
}

// OpenChain decodes an untrusted chain, which has one spelling, and checks that the keys that it
// names have signed it, and that each root follows from the one before. Check says whether to
// believe it. Errors have the fault FaultForged.
func OpenChain(ctx context.Context, text []byte) (*Chain, error) {
	fail := func(format string, args ...any) (*Chain, error) {
		return nil, channel.Fail("root.verify", channel.FaultForged, "the certificate", format, args...)
	}
	if len(text) > MaxChain {
		return fail("has %d bytes; the limit is %d", len(text), MaxChain)
	}
	body, ended := bytes.CutSuffix(text, []byte("\n"))
	lines := bytes.Split(body, []byte("\n"))
	if !ended || len(lines) > 1+MaxSuccessions {
		return fail("is not 1 to %d lines", 1+MaxSuccessions)
	}
	certificate, err := openPredicate[Certificate](ctx, "the certificate", CertificatePredicateType, lines[0])
	if err != nil {
		return nil, err
	}
	c := &Chain{Certificate: certificate}
	for _, line := range lines[1:] {
		s, err := openPredicate[Succession](ctx, "the succession", SuccessionPredicateType, line)
		if err != nil {
			return nil, err
		}
		c.Successions = append(c.Successions, s)
	}
	seen := map[string]bool{c.Signer: true}
	for i, s := range c.Successions {
		next, epoch := c.Signer, c.Epoch+1
		if i+1 < len(c.Successions) {
			next, epoch = c.Successions[i+1].Signer, c.Successions[i+1].Epoch
		}
		switch {
		case s.Next != next:
			return fail("its successions do not lead to the root that signed it")
		case s.Epoch >= epoch:
			return fail("its epochs go back")
		case seen[s.Signer]:
			return fail("a root follows itself")
		}
		seen[s.Signer] = true
	}
	return c, nil
}

// Roots returns the roots of the chain as "TYPE BASE64", the oldest first.
func (c *Chain) Roots() (all []string) {
	for _, s := range c.Successions {
		all = append(all, s.Signer)
	}
	return append(all, c.Signer)
}

// Names of what is wrong with the certificate of a node whose root a client pins.
const (
	FaultUncertified channel.Fault = "uncertified" // none was shown
	FaultOtherRoot   channel.Fault = "other_root"  // another root signed it
	FaultCertExpired channel.Fault = "certificate_expired"
	FaultCertEarly   channel.Fault = "certificate_not_yet_valid"
	FaultOldEpoch    channel.Fault = "old_epoch"    // it was revoked, or its root rotated
	FaultOtherNode   channel.Fault = "other_node"   // it is about another key or name
	FaultRootRevoked channel.Fault = "root_revoked" // the user does not trust the root
)

// hints say what to do about each of them.
var hints = map[channel.Fault]string{
	FaultUncertified: "ask the server's operator to certify the node: turn host root sign, and " +
		"node.certificate of the node",
	FaultOtherRoot: "compare the root with the server's operator; turn host add --root FINGERPRINT " +
		"trusts another one",
	FaultCertExpired: "ask the server's operator for a new certificate of the node, and compare the " +
		"clocks of this machine and of the node: date -u",
	FaultCertEarly: "compare the clocks of this machine and of the node: date -u",
	FaultOldEpoch: "ask the server's operator for a new certificate of the node: later ones of the " +
		"same root are in use",
	FaultRootRevoked: "do not rely on nodes that this root certified",
	FaultOtherNode:   "ask the server's operator which key the node has: turn host root show",
}

func refuse(f channel.Fault, format string, args ...any) *turnstone.Error {
	return channel.Fail("root.verify", f, "the node's certificate", format, args...).
		WithHint(hints[f])
}

// A Root is what a client knows of an operator's root.
type Root struct {
	Key   string // "TYPE BASE64"
	Epoch uint64 // the latest that it saw
}

// Revoked is the error about a root that the user of this client has revoked.
func Revoked(root key.Public) error {
	return refuse(FaultRootRevoked, "is of the root %s, which is revoked here", root.ID())
}

func fingerprint(k string) string {
	p, err := key.Parse(k)
	if err != nil {
		return "an unknown key"
	}
	return p.ID()
}

// Check returns what the client knows after it has seen the chain: the root that signed the
// certificate, which may follow from the client's. Each error has a Fault, and says why the client
// does not believe the certificate.
func (c *Chain) Check(r Root, now time.Time) (Root, error) {
	roots := c.Roots()
	at := -1
	for i, k := range roots {
		if k == r.Key {
			at = i
		}
	}
	switch {
	case at < 0:
		return r, refuse(FaultOtherRoot, "is signed by the root %s, and this client trusts %s",
			fingerprint(c.Signer), fingerprint(r.Key))
	case at < len(c.Successions) && c.Successions[at].Epoch <= r.Epoch:
		return r, refuse(FaultOldEpoch, "has a succession of epoch %d, and this client has seen "+
			"epoch %d", c.Successions[at].Epoch, r.Epoch)
	case c.Epoch < r.Epoch:
		return r, refuse(FaultOldEpoch, "has epoch %d, and this client has seen epoch %d", c.Epoch,
			r.Epoch)
	case c.Time.After(now.Add(skew)):
		return r, refuse(FaultCertEarly, "is valid from %s only", c.Time.Format(time.RFC3339))
	case !now.Before(c.Expires):
		return r, refuse(FaultCertExpired, "expired at %s", c.Expires.Format(time.RFC3339))
	}
	return Root{c.Signer, c.Epoch}, nil
}

// Replaced is the error about a certificate of a root, "TYPE BASE64", that another one has replaced.
func Replaced(root, by string) error {
	return refuse(FaultOtherRoot, "is signed by the root %s, which this client has seen replaced by %s",
		fingerprint(root), fingerprint(by)).
		WithHint("ask the server's operator for a certificate of the node by the new root")
}

// CheckNode reports a certificate that is not about the node with this name and key. Without a name,
// it is about any node's.
func (c *Chain) CheckNode(name string, k key.Public) error {
	switch {
	case c.Key != k.String():
		return refuse(FaultOtherNode, "is about the key %s, and the node has %s",
			fingerprint(c.Key), k.ID())
	case name != "" && c.Node != "" && c.Node != name:
		return refuse(FaultOtherNode, "is about the node %.80s, and not about %.80s", c.Node, name)
	}
	return nil
}

// Uncertified is the error about a node that shows no certificate of the root that a client pins.
func Uncertified(root string) error {
	return refuse(FaultUncertified, "is missing, and this client trusts nodes of the root %s only",
		fingerprint(root))
}
