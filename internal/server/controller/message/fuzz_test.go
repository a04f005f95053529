package message

import (
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/server/records"
)

// told returns the message of a record for a caller.
func told(x Seen) proto.Message {
	switch x.Kind {
	case records.Sandbox:
		return Sandbox(x)
	case records.Turn:
		return Turn(x)
	case records.Session:
		return Session(x)
	}
	return Snapshot(x)
}

// FuzzReport reads a node's report of an object: a record of it has bounds, and the message of the
// record can be sent to a caller.
func FuzzReport(f *testing.F) {
	for _, m := range []*v1.WatchNodeResponse{
		{Object: &v1.WatchNodeResponse_Sandbox{Sandbox: &v1.OwnedSandbox{Tenant: "a",
			Sandbox: &v1.Sandbox{SandboxId: "sb_000000000000000001", Name: "x",
				State: v1.SandboxState_SANDBOX_STATE_READY}}}},
		{Object: &v1.WatchNodeResponse_Turn{Turn: &v1.OwnedTurn{Tenant: "a",
			Turn: &v1.Turn{TicketId: "tk_000000000000000001", State: v1.TurnState_TURN_STATE_DONE}}}},
		{Object: &v1.WatchNodeResponse_Session{Session: &v1.OwnedSession{Tenant: "a",
			Session: &v1.Session{SessionId: "s_000000000000000001", Name: "x"}}}},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var m v1.WatchNodeResponse
		if proto.Unmarshal(b, &m) != nil {
			return
		}
		r, ok := OfEvent(&m)
		if !ok {
			return
		}
		if len(r.Detail) > records.MaxDetail || r.State == "" {
			t.Fatalf("%+v", r)
		}
		sent := told(Seen{Object: r.Object, SessionName: r.Session})
		if _, err := proto.Marshal(sent); err != nil {
			t.Fatal(err)
		}
		if _, err := protojson.Marshal(sent); err != nil {
			t.Fatal(err)
		}
	})
}

// FuzzDetail reads what a record keeps of an object, from a damaged database: it is a message, and
// says nothing else about what the record has itself.
func FuzzDetail(f *testing.F) {
	f.Add(encode(&v1.Sandbox{Template: "x"}))
	f.Add(unknownField)
	f.Fuzz(func(t *testing.T, detail []byte) {
		for kind, id := range map[records.Kind]string{records.Sandbox: "sb_000000000000000001",
			records.Turn: "tk_000000000000000001", records.Session: "s_000000000000000001",
			records.Snapshot: "sn_000000000000000001"} {
			m := told(Seen{Object: records.Object{Kind: kind, ID: id, State: records.Ready,
				Detail: detail}})
			_, err := proto.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			var got string
			switch m := m.(type) {
			case *v1.Sandbox:
				got = m.SandboxId
			case *v1.Turn:
				got = m.TicketId
			case *v1.Session:
				got = m.SessionId
			case *v1.Snapshot:
				got = m.SnapshotId
			}
			if got != id {
				t.Fatalf("%s became %q", id, got)
			}
		}
	})
}

// TestEmptyReport: a node that reports an object without saying which reports nothing.
func TestEmptyReport(t *testing.T) {
	for _, m := range []*v1.WatchNodeResponse{{},
		{Object: &v1.WatchNodeResponse_Sandbox{}},
		{Object: &v1.WatchNodeResponse_Sandbox{Sandbox: &v1.OwnedSandbox{Tenant: "a"}}},
		{Object: &v1.WatchNodeResponse_Turn{Turn: &v1.OwnedTurn{Tenant: "a"}}},
		{Object: &v1.WatchNodeResponse_Session{Session: &v1.OwnedSession{Tenant: "a"}}},
		{Object: &v1.WatchNodeResponse_Snapshot{Snapshot: &v1.OwnedSnapshot{Tenant: "a"}}},
		{Object: &v1.WatchNodeResponse_Snapshot{}}} {
		if r, ok := OfEvent(m); ok {
			t.Errorf("%v: %+v", m, r)
		}
	}
}
