// Package proof makes and checks the evidence of a turn: an in-toto statement in a DSSE envelope, at
// the end of the turn's receipt. It knows no store and no session. docs/chain.md specifies the
// formats.
package proof

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	intoto "github.com/in-toto/attestation/go/v1"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/proof/key"
)

// The types of a statement.
const (
	PayloadType   = "application/vnd.in-toto+json"
	PredicateType = "https://turnstone.dev/attestations/turn/v2"
	// FirstPredicateType is that of earlier versions, with which the FS hash is a subject, by a name of an
	// algorithm that is turn's own. Sigstore's verifiers in Python refuse such names.
	FirstPredicateType = "https://turnstone.dev/attestations/turn/v1"
)

// Bounds of an untrusted statement.
const (
	maxPayload = 256 << 10
	maxDepth   = 16
)

// The names of a statement's subjects.
const (
	SubjectReceipt = "receipt"     // its text without the evidence
	SubjectRecord  = "record"      // the object of the store
	SubjectFS      = "fs"          // the FS hash of the state, of earlier versions
	SubjectLayer   = "fs.diff"     // the layer
	SubjectTrace   = "trace.span"  // the commands
	SubjectMachine = "snapshot.vm" // the list of the kept machine's files
)

// fsAlgorithm is the FS hash's name among the digests of earlier versions.
const fsAlgorithm = "turnstoneFsHash"

// A Statement is what the signers of a turn vouch for.
type Statement struct {
	Subjects  Subjects
	Predicate Predicate
	First     bool // it has the form of FirstPredicateType
}

// Subjects are the digests of what a turn left. All except Receipt and Record may be empty.
type Subjects struct{ Receipt, Record, Layer, Trace, Machine turnstone.Digest }

// A Predicate describes a turn.
type Predicate struct {
	Turn        Turn             `json:"turn"`
	Document    turnstone.Digest `json:"document"`
	FS          turnstone.Digest `json:"fs,omitempty"` // the FS hash of the state, which is no hash of a byte string
	Parents     []Parent         `json:"parents"`
	Template    Template         `json:"template"`
	Machine     Machine          `json:"machine"`
	Network     *Network         `json:"network,omitempty"`
	Determinism *Determinism     `json:"determinism,omitempty"`
	Signers     []Signer         `json:"signers"`
	Program     string           `json:"program"` // version of the program that ran the turn
	Time        time.Time        `json:"time"`    // of the signature by the node, in seconds
}

// A Turn is the place of a turn in its session, and its result.
type Turn struct {
	ID      turnstone.TurnID    `json:"id"`
	Session turnstone.SessionID `json:"session"`
	Number  int                 `json:"number"`
	Branch  string              `json:"branch"`
	Kind    turnstone.TurnKind  `json:"kind"`
	Title   string              `json:"title,omitempty"`
	Result  turnstone.Result    `json:"result"`
	Started time.Time           `json:"started"`
	Millis  int64               `json:"duration_ms"`
	Resumed int                 `json:"resumed,omitempty"` // how often, after interruptions
}

// A Parent is a link of the chain.
type Parent struct {
	Turn   turnstone.TurnID `json:"turn"`
	Record turnstone.Digest `json:"record,omitempty"` // empty: the turn was interrupted
	// Statement is the digest of the parent's payload; empty: the parent is not signed.
	Statement turnstone.Digest `json:"statement,omitempty"`
}

// A Template is what the turn's files began with.
type Template struct {
	Name   string           `json:"name"`
	Digest turnstone.Digest `json:"digest,omitempty"` // of the template's spec
	Image  turnstone.Digest `json:"image,omitempty"`  // of its root image
}

// A Machine is what the turn ran in. Digests are empty where they are not known.
type Machine struct {
	Substrate string           `json:"substrate,omitempty"`
	Isolation string           `json:"isolation,omitempty"`
	Program   turnstone.Digest `json:"program,omitempty"`
	Kernel    turnstone.Digest `json:"kernel,omitempty"`
	Init      turnstone.Digest `json:"init,omitempty"`
	Agent     turnstone.Digest `json:"agent,omitempty"`
	CPUs      int              `json:"cpus,omitempty"`
	Memory    int64            `json:"memory,omitempty"` // bytes
	Disk      int64            `json:"disk,omitempty"`   // bytes
}

// A Network is the policy of the turn's network, and its recording.
type Network struct {
	Policy   turnstone.Digest `json:"policy,omitempty"` // of the policy as JSON in the record
	Index    turnstone.Digest `json:"index,omitempty"`  // of the recording
	Data     turnstone.Digest `json:"data,omitempty"`
	Replayed turnstone.TurnID `json:"replayed,omitempty"`
}

// A Determinism is the promise that a deterministic turn makes.
type Determinism struct {
	Tier  string    `json:"tier"`
	Seed  string    `json:"seed"`
	Clock time.Time `json:"clock"`
}

// A Signer is a key that signs the statement, in the order of the envelope's signatures.
type Signer struct {
	Role key.Role `json:"role"`
	Key  string   `json:"key"` // "TYPE BASE64"
}

// encoded is a statement as JSON.
type encoded struct {
	Type          string    `json:"_type"`
	Subject       []subject `json:"subject"`
	PredicateType string    `json:"predicateType"`
	Predicate     Predicate `json:"predicate"`
}

type subject struct {
	Name   string            `json:"name"`
	Digest map[string]string `json:"digest"`
}

// list returns the subjects in their order. fs is the FS hash if it is one of them.
func (s Subjects) list(fs turnstone.Digest) (all []subject) {
	for _, one := range []struct {
		name, algorithm string
		digest          turnstone.Digest
	}{{SubjectReceipt, "sha256", s.Receipt}, {SubjectRecord, "sha256", s.Record},
		{SubjectFS, fsAlgorithm, fs}, {SubjectLayer, "sha256", s.Layer},
		{SubjectTrace, "sha256", s.Trace}, {SubjectMachine, "sha256", s.Machine}} {
		if one.digest != "" {
			all = append(all, subject{one.name, map[string]string{one.algorithm: one.digest.Hex()}})
		}
	}
	return all
}

// subjects sets the subjects, which is the reverse of list.
func (s *Statement) subjects(list []subject) error {
	at := map[string]*turnstone.Digest{SubjectReceipt: &s.Subjects.Receipt,
		SubjectRecord: &s.Subjects.Record, SubjectLayer: &s.Subjects.Layer,
		SubjectTrace: &s.Subjects.Trace, SubjectMachine: &s.Subjects.Machine}
	if s.First {
		at[SubjectFS] = &s.Predicate.FS
	}
	for _, one := range list {
		to := at[one.Name]
		if to == nil || *to != "" || len(one.Digest) != 1 {
			return fmt.Errorf("the subject %.60q is not expected here", one.Name)
		}
		for algorithm, hex := range one.Digest {
			if (algorithm == fsAlgorithm) != (one.Name == SubjectFS) ||
				algorithm != fsAlgorithm && algorithm != "sha256" {
				return fmt.Errorf("the subject %s has a digest %.60q", one.Name, algorithm)
			}
			var err error
			if *to, err = turnstone.ParseDigest("sha256:" + hex); err != nil {
				return fmt.Errorf("the subject %s: %w", one.Name, err)
			}
		}
	}
	return nil
}

// Encode returns the payload of an envelope: JSON without white space. The error is of kind Invalid
// if the statement could not be decoded again.
func (s *Statement) Encode() ([]byte, error) {
	b, err := s.encode()
	if err == nil {
		_, err = DecodeStatement(b)
	}
	if err != nil {
		return nil, turnstone.NewError("proof.encode", turnstone.KindInvalid, "the statement", err)
	}
	return b, nil
}

func (s *Statement) encode() ([]byte, error) {
	e := encoded{Type: intoto.StatementTypeUri, Subject: s.Subjects.list(""),
		PredicateType: PredicateType, Predicate: s.Predicate}
	if s.First {
		e.PredicateType, e.Predicate.FS = FirstPredicateType, ""
		e.Subject = s.Subjects.list(s.Predicate.FS)
	}
	return compact(e)
}

// compact returns v as JSON on one line, without the escapes for HTML.
func compact(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// DecodeStatement decodes an untrusted payload. A statement has one spelling: the decoded payload is
// encoded again, and compared. Errors are of kind Integrity.
func DecodeStatement(payload []byte) (*Statement, error) {
	fail := func(format string, args ...any) (*Statement, error) {
		return nil, turnstone.Errorf("proof.statement", turnstone.KindIntegrity, "the statement",
			format, args...)
	}
	if err := CheckInToto(payload, "a turn", PredicateType, FirstPredicateType); err != nil {
		return fail("%w", err)
	}
	var e encoded
	dec := json.NewDecoder(bytes.NewReader(payload))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&e); err != nil {
		return fail("cannot be decoded: %w", err)
	}
	s := &Statement{Predicate: e.Predicate, First: e.PredicateType == FirstPredicateType}
	if err := s.subjects(e.Subject); err != nil {
		return fail("%w", err)
	}
	if err := s.check(); err != nil {
		return fail("%w", err)
	}
	again, err := s.encode()
	if err != nil || !bytes.Equal(again, payload) {
		return fail("is not spelled as turn writes it: white space, order, an escape, or a key " +
			"that is there twice")
	}
	return s, nil
}

// depth returns the deepest nesting of brackets outside of strings.
func depth(b []byte) (deepest int) {
	level, quoted := 0, false
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			level++
			deepest = max(deepest, level)
		case c == '}' || c == ']':
			level--
		}
	}
	return deepest
}

// The years that a statement may name.
const (
	firstYear = 1970
	lastYear  = 2100
)

// CheckTime reports a time that no statement may have.
func CheckTime(t time.Time) error {
	if y := t.UTC().Year(); y < firstYear || y > lastYear {
		return fmt.Errorf("the clock says %s, which is not between %d and %d",
			t.UTC().Format(time.RFC3339), firstYear, lastYear)
	}
	return nil
}

// check reports a statement that means nothing.
func (s *Statement) check() error {
	p := &s.Predicate
	if s.Subjects.Receipt == "" || s.Subjects.Record == "" {
		return errors.New("the receipt or the record is not among its subjects")
	}
	if p.Turn.ID == "" || p.Turn.Session == "" || p.Turn.Number < 1 || len(p.Parents) > 2 ||
		p.Turn.Resumed < 0 {
		return errors.New("it names no turn of a session")
	}
	for _, t := range []time.Time{p.Time, p.Turn.Started} {
		if err := CheckTime(t); err != nil {
			return err
		}
	}
	if p.Time.Location() != time.UTC || p.Time.Nanosecond() != 0 {
		return errors.New("its time is not in UTC and whole seconds")
	}
	if d := p.Determinism; d != nil {
		if err := d.check(); err != nil {
			return fmt.Errorf("its determinism: %w", err)
		}
	}
	for _, d := range p.digests() {
		if d == "" {
			continue
		}
		if _, err := turnstone.ParseDigest(string(d)); err != nil {
			return err
		}
	}
	return p.checkSigners()
}

// check reports values that no deterministic turn ran with.
func (d *Determinism) check() error {
	seed, err := turnstone.ParseSeed(d.Seed)
	if err == nil && d.Clock.Location() != time.UTC {
		err = errors.New("its clock is not in UTC")
	}
	if err != nil {
		return err
	}
	return turnstone.Determinism{Tier: turnstone.Tier(d.Tier), Seed: seed, Clock: d.Clock}.Validate()
}

// digests returns all digests of the predicate.
func (p *Predicate) digests() []turnstone.Digest {
	all := []turnstone.Digest{p.Document, p.FS, p.Template.Digest, p.Template.Image, p.Machine.Program,
		p.Machine.Kernel, p.Machine.Init, p.Machine.Agent}
	for _, parent := range p.Parents {
		all = append(all, parent.Record, parent.Statement)
	}
	if n := p.Network; n != nil {
		all = append(all, n.Policy, n.Index, n.Data)
	}
	return all
}

// checkSigners checks that the node signs, then the caller if there is one.
func (p *Predicate) checkSigners() error {
	for i, want := range []key.Role{key.Node, key.Caller} {
		switch {
		case i < len(p.Signers) && p.Signers[i].Role != want:
			return fmt.Errorf("signer %d has the role %.20q, not %s", i+1, p.Signers[i].Role, want)
		case i < len(p.Signers):
			if _, err := key.Parse(p.Signers[i].Key); err != nil {
				return fmt.Errorf("the %s's key: %w", want, err)
			}
		case i == 0:
			return errors.New("it names no signer")
		}
	}
	if len(p.Signers) > 2 {
		return errors.New("it names more than two signers")
	}
	if len(p.Signers) == 2 && p.Signers[0].Key == p.Signers[1].Key {
		return errors.New("one key signs in both roles")
	}
	return nil
}
