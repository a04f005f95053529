// Package message converts between records and the messages of the control API. A record keeps what
// a node says of an object as the encoding of a message without what the record has itself.
package message

import (
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/server/records"
)

// A pair is a value of a message and of a record.
type pair[A, B comparable] struct {
	message A
	record  B
}

// Pairs are the values of a message and of a record.
type Pairs[A, B comparable] []pair[A, B]

// ToRecord returns the value of a record; the zero value for one that no pair has.
func (l Pairs[A, B]) ToRecord(a A) (b B) {
	for _, p := range l {
		if p.message == a {
			return p.record
		}
	}
	return b
}

// ToMessage returns the value of a message; the zero value for one that no pair has.
func (l Pairs[A, B]) ToMessage(b B) (a A) {
	for _, p := range l {
		if p.record == b {
			return p.message
		}
	}
	return a
}

// The states of sandboxes and turns.
var (
	SandboxStates = Pairs[v1.SandboxState, records.State]{
		{v1.SandboxState_SANDBOX_STATE_CREATING, records.Creating},
		{v1.SandboxState_SANDBOX_STATE_READY, records.Ready},
		{v1.SandboxState_SANDBOX_STATE_RUNNING, records.Running},
		{v1.SandboxState_SANDBOX_STATE_STOPPED, records.Stopped},
		{v1.SandboxState_SANDBOX_STATE_FAILED, records.Failed},
	}
	sandboxReasons = Pairs[v1.SandboxReason, string]{
		{v1.SandboxReason_SANDBOX_REASON_STOP_REQUESTED, string(records.StopRequested)},
		{v1.SandboxReason_SANDBOX_REASON_TIME_UP, string(records.TimeUp)},
		{v1.SandboxReason_SANDBOX_REASON_CREATE_FAILED, string(records.CreateFailed)},
		{v1.SandboxReason_SANDBOX_REASON_MACHINE_DIED, string(records.MachineDied)},
		{v1.SandboxReason_SANDBOX_REASON_HOLDER_DIED, string(records.HolderDied)},
		{v1.SandboxReason_SANDBOX_REASON_NODE_LOST, records.LostReason},
	}
	TurnStates = Pairs[v1.TurnState, records.State]{
		{v1.TurnState_TURN_STATE_RESERVED, records.Reserved},
		{v1.TurnState_TURN_STATE_RUNNING, records.Running},
		{v1.TurnState_TURN_STATE_DONE, records.Done},
		{v1.TurnState_TURN_STATE_EXPIRED, records.Expired},
	}
	turnResults = Pairs[v1.TurnResult, string]{
		{v1.TurnResult_TURN_RESULT_PASSED, "passed"},
		{v1.TurnResult_TURN_RESULT_FAILED, "failed"},
		{v1.TurnResult_TURN_RESULT_TIMEOUT, "timeout"},
		{v1.TurnResult_TURN_RESULT_ERROR, records.ResultError},
	}
)

// encode returns what a record keeps of a message, in one encoding.
func encode(m proto.Message) []byte {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil || len(b) > records.MaxDetail {
		return nil // not UTF-8, or too large: the record keeps what it has
	}
	if len(b) == 0 {
		b = unknownField // an empty detail is none
	}
	return b
}

// unknownField is the encoding of a message without fields that is not empty: a field with the
// greatest number, which no message here has.
var unknownField = []byte{0xf8, 0xff, 0xff, 0xff, 0x0f, 0x00}

// copyOf returns a copy of a message; an empty one if a node has left it out.
func copyOf[M proto.Message](m M) M {
	if !m.ProtoReflect().IsValid() {
		return m.ProtoReflect().New().Interface().(M)
	}
	return proto.Clone(m).(M)
}

// Decode reads what encode made.
func Decode(detail []byte, m proto.Message) {
	_ = proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(detail, m) // an empty message, then
}

// orNow returns the time of a report, which is now if its node says none.
func orNow(t *timestamppb.Timestamp) time.Time {
	if t.IsValid() {
		return t.AsTime()
	}
	return time.Now()
}

// Sandbox returns the message of a sandbox's record.
func Sandbox(x Seen) *v1.Sandbox {
	s := &v1.Sandbox{}
	Decode(x.Detail, s)
	s.SandboxId, s.Name, s.ContextId, s.Node = x.ID, x.Name, x.SessionName, x.Node
	s.State = SandboxStates.ToMessage(x.State)
	if x.State.Final() {
		s.Reason = sandboxReasons.ToMessage(x.Reason)
	}
	s.Paused, s.Metadata, s.ManagedBy = x.Paused, x.Labels, x.ManagedBy
	s.Created, s.Changed = Timestamp(x.Created), Timestamp(x.Changed)
	if x.Template != "" {
		s.Template = x.Template
	}
	return s
}

// Removed returns the detail of the record of a sandbox that its caller has removed, or whose caller
// knows that it could not be created.
func Removed(detail []byte) []byte {
	s := &v1.Sandbox{}
	Decode(detail, s)
	s.Removed = true
	return encode(s)
}

// A Seen object is a record with the name of its session.
type Seen struct {
	records.Object
	SessionName string // its ID if it has no name; "": it belongs to none
}

// Labels of records that no message has.
const (
	LabelCPUs   = "cpus" // of a turn's machine
	LabelMemory = "memory"
	LabelDisk   = "disk"
	LabelParent = "sandbox" // of a snapshot
)

// A Report is what a node says of an object.
type Report struct {
	records.Object
	At   time.Time // of the node's change; zero: unknown
	Gone bool
}

// Valid reports whether a report can be believed to be about an object at all.
func (r *Report) Valid() bool {
	return r.State != "" && records.IsObjectID(r.Kind, r.ID)
}

// OfSandbox returns what a node says of a sandbox.
func OfSandbox(tenant string, s *v1.Sandbox) Report {
	d := copyOf(s)
	d.SandboxId, d.Name, d.State, d.Reason, d.Paused, d.ContextId = "", "", 0, 0, false, ""
	d.Metadata, d.ManagedBy, d.Created, d.Changed, d.Node, d.Removed = nil, "", nil, nil, "", false
	return Report{Object: records.Object{Kind: records.Sandbox, ID: s.GetSandboxId(),
		Tenant: tenant, Name: s.GetName(), Template: s.GetTemplate(), Session: s.GetContextId(),
		State: SandboxStates.ToRecord(s.GetState()), Paused: s.GetPaused(),
		Reason: sandboxReasons.ToRecord(s.GetReason()), Labels: s.GetMetadata(), ManagedBy: s.GetManagedBy(),
		Created: orNow(s.GetCreated()), Detail: encode(d)}, At: Instant(s.GetChanged())}
}

// Turn returns the message of a turn's record.
func Turn(x Seen) *v1.Turn {
	t := &v1.Turn{}
	Decode(x.Detail, t)
	t.TicketId, t.Node, t.Session, t.SessionId = x.ID, x.Node, x.SessionName, ""
	if records.IsSessionID(x.Object.Session) {
		t.SessionId = x.Object.Session
		if t.Session == t.SessionId {
			t.Session = ""
		}
	}
	t.State = TurnStates.ToMessage(x.State)
	if x.State == records.Done {
		t.Result = turnResults.ToMessage(x.Result)
	}
	if x.State != records.Reserved {
		t.Expires = nil
	}
	if t.Created = Timestamp(x.Created); x.State.Final() && t.Ended == nil {
		t.Ended = Timestamp(x.Ended)
	}
	return t
}

// OfTurn returns what a node says of a turn.
func OfTurn(tenant string, t *v1.Turn) Report {
	d := copyOf(t)
	d.TicketId, d.SessionId, d.Session, d.State, d.Result = "", "", "", 0, 0
	d.Created, d.Node = nil, ""
	session := t.GetSessionId()
	if session == "" {
		session = t.GetSession()
	}
	return Report{Object: records.Object{Kind: records.Turn, ID: t.GetTicketId(), Tenant: tenant,
		Session: session, State: TurnStates.ToRecord(t.GetState()),
		Result: turnResults.ToRecord(t.GetResult()), Created: orNow(t.GetCreated()),
		Detail: encode(d)}}
}

// Session returns the message of a session's record.
func Session(x Seen) *v1.Session {
	s := &v1.Session{}
	Decode(x.Detail, s)
	s.SessionId, s.Name, s.Node, s.Created = x.ID, x.Name, x.Node, Timestamp(x.Created)
	if s.Used == nil {
		s.Used = s.Created
	}
	return s
}

// OfSession returns what a node says of a session.
func OfSession(tenant string, s *v1.Session) Report {
	d := copyOf(s)
	d.SessionId, d.Name, d.Node, d.Created = "", "", "", nil
	return Report{Object: records.Object{Kind: records.Session, ID: s.GetSessionId(),
		Tenant: tenant, Name: s.GetName(), State: records.Kept, Created: orNow(s.GetCreated()),
		Detail: encode(d)}}
}

// Snapshot returns the message of a snapshot's record.
func Snapshot(x Seen) *v1.Snapshot {
	s := &v1.Snapshot{}
	Decode(x.Detail, s)
	s.SnapshotId, s.SandboxId, s.Created = x.ID, x.Labels[LabelParent], Timestamp(x.Created)
	if x.Template != "" {
		s.Template = x.Template
	}
	return s
}

// OfSnapshot returns what a node says of a snapshot.
func OfSnapshot(tenant string, s *v1.Snapshot) Report {
	d := copyOf(s)
	d.SnapshotId, d.SandboxId, d.Created = "", "", nil
	return Report{Object: records.Object{Kind: records.Snapshot, ID: s.GetSnapshotId(),
		Tenant: tenant, Template: s.GetTemplate(), State: records.Kept,
		Labels:  map[string]string{LabelParent: s.GetSandboxId()},
		Created: orNow(s.GetCreated()), Detail: encode(d)}}
}

// OfEvent returns the report of an object in a node's event.
func OfEvent(m *v1.WatchNodeResponse) (r Report, ok bool) {
	switch x := m.GetObject().(type) {
	case *v1.WatchNodeResponse_Sandbox:
		r = OfSandbox(x.Sandbox.GetTenant(), x.Sandbox.GetSandbox())
	case *v1.WatchNodeResponse_Turn:
		r = OfTurn(x.Turn.GetTenant(), x.Turn.GetTurn())
	case *v1.WatchNodeResponse_Session:
		r = OfSession(x.Session.GetTenant(), x.Session.GetSession())
	case *v1.WatchNodeResponse_Snapshot:
		r = OfSnapshot(x.Snapshot.GetTenant(), x.Snapshot.GetSnapshot())
	default:
		return r, false
	}
	r.Gone = m.GetEvent() == v1.WatchEvent_WATCH_EVENT_DELETED
	return r, r.Valid()
}
