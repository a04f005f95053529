package control

import (
	"cmp"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/channel/attest"
	"turnstone.dev/turnstone/internal/server/node/kept"
	"turnstone.dev/turnstone/internal/server/node/turns"
	"turnstone.dev/turnstone/sandboxes"
)

func (s *Service) channel(signed *attest.Signed, path, name, value string) *v1.Channel {
	return &v1.Channel{Attestation: signed.Envelope, ServerPublicKey: signed.ServerKey[:],
		Path:    strings.Replace(path, name, value, 1),
		Expires: timestamppb.New(signed.Expires), Certificate: s.o.Node.Certificate()}
}

// stamp returns nil for the zero time.
func stamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

func machineOf(m turnstone.Machine) *v1.Machine {
	return &v1.Machine{Cpus: uint32(m.CPUs), Memory: uint64(m.Memory), Disk: uint64(m.Disk)}
}

func toMachine(m *v1.Machine) turnstone.Machine {
	return turnstone.Machine{CPUs: int(m.GetCpus()), Memory: turnstone.Bytes(m.GetMemory()),
		Disk: turnstone.Bytes(m.GetDisk())}
}

func toState(s sandboxes.State) v1.SandboxState {
	switch s {
	case sandboxes.StateCreating:
		return v1.SandboxState_SANDBOX_STATE_CREATING
	case sandboxes.StateReady:
		return v1.SandboxState_SANDBOX_STATE_READY
	case sandboxes.StateRunning:
		return v1.SandboxState_SANDBOX_STATE_RUNNING
	case sandboxes.StateStopped:
		return v1.SandboxState_SANDBOX_STATE_STOPPED
	case sandboxes.StateFailed:
		return v1.SandboxState_SANDBOX_STATE_FAILED
	}
	return v1.SandboxState_SANDBOX_STATE_UNSPECIFIED
}

// toReason returns why a sandbox has ended.
func toReason(i sandboxes.Info) v1.SandboxReason {
	switch i.End {
	case sandboxes.EndStopRequested:
		return v1.SandboxReason_SANDBOX_REASON_STOP_REQUESTED
	case sandboxes.EndTimeUp:
		return v1.SandboxReason_SANDBOX_REASON_TIME_UP
	case sandboxes.EndCreateFailed:
		return v1.SandboxReason_SANDBOX_REASON_CREATE_FAILED
	case sandboxes.EndMachineDied:
		return v1.SandboxReason_SANDBOX_REASON_MACHINE_DIED
	case sandboxes.EndHolderDied:
		return v1.SandboxReason_SANDBOX_REASON_HOLDER_DIED
	}
	switch i.State { // an older version has ended it
	case sandboxes.StateStopped:
		return v1.SandboxReason_SANDBOX_REASON_STOP_REQUESTED
	case sandboxes.StateFailed:
		return v1.SandboxReason_SANDBOX_REASON_MACHINE_DIED
	}
	return v1.SandboxReason_SANDBOX_REASON_UNSPECIFIED
}

// sandboxOf describes a sandbox. r is its record; nil if a local command has created it. The label
// of a sandbox is not in the answer, because local commands write titles of turns there.
func (s *Service) sandboxOf(i sandboxes.Info, r *kept.Sandbox) *v1.Sandbox {
	out := &v1.Sandbox{SandboxId: string(i.ID), Name: i.Name, State: toState(i.State),
		Paused: i.Paused, Template: i.Image, TemplateDigest: string(i.Template),
		Substrate: i.Substrate, Network: i.Shape.Network, Created: stamp(i.Created),
		Changed: stamp(i.Changed), ParentId: string(i.Parent), Node: s.o.Node.Name(),
		Machine: machineOf(turnstone.Machine{CPUs: i.Shape.CPUs, Memory: i.Shape.Memory,
			Disk: i.Shape.Disk}), TemplateSize: uint64(max(0, i.TemplateSize)),
		Version: i.Version}
	if i.Session == nil && (r == nil || r.Session == "") {
		out.Workdir, out.User = i.Workdir, i.User // else a command has chosen the directory
	}
	if i.State.Final() {
		out.Reason = toReason(i)
	} else if i.Expires != nil {
		out.Expires = stamp(*i.Expires)
	}
	out.Used = usedOf(i.Used)
	if i.Session != nil {
		out.ContextId = i.Session.Name
	}
	if r != nil {
		out.Metadata, out.ManagedBy, out.SnapshotId = r.Metadata, r.Managed, r.From
		out.ContextId = cmp.Or(out.ContextId, r.Context)
	}
	return out
}

// usedOf returns nil for a machine that has used nothing, or was not measured yet.
func usedOf(u turnstone.Used) *v1.Used {
	if u == (turnstone.Used{}) {
		return nil
	}
	return &v1.Used{Cpu: durationpb.New(time.Duration(u.CPU)), BytesOut: uint64(u.Sent),
		BytesIn: uint64(u.Received)}
}

func (s *Service) turnOf(i turns.Info) *v1.Turn {
	t := &v1.Turn{TicketId: i.ID, TurnId: string(i.Turn), Session: i.Session,
		SessionId: string(i.SessionID), Number: uint32(i.Number), Created: stamp(i.Created),
		Started: stamp(i.Started), Ended: stamp(i.Ended), Node: s.o.Node.Name()}
	t.Used = usedOf(i.Used)
	if strings.HasPrefix(i.In, "s_") {
		t.SessionId = i.In
	}
	switch i.State {
	case turns.Reserved:
		t.State, t.Expires = v1.TurnState_TURN_STATE_RESERVED, stamp(i.Expires)
	case turns.Running:
		t.State = v1.TurnState_TURN_STATE_RUNNING
	case turns.Expired:
		t.State = v1.TurnState_TURN_STATE_EXPIRED
	case turns.Done:
		t.State = v1.TurnState_TURN_STATE_DONE
		switch i.Result {
		case turnstone.ResultPassed:
			t.Result = v1.TurnResult_TURN_RESULT_PASSED
		case turnstone.ResultFailed:
			t.Result = v1.TurnResult_TURN_RESULT_FAILED
		case turnstone.ResultTimedOut:
			t.Result = v1.TurnResult_TURN_RESULT_TIMEOUT
		default:
			t.Result = v1.TurnResult_TURN_RESULT_ERROR
		}
	}
	return t
}

func (s *Service) sessionOf(tenant string, i turnstone.SessionInfo) *v1.Session {
	return &v1.Session{SessionId: string(i.ID), Name: i.Name, Turns: uint32(i.Turns),
		Running: uint32(i.Running), Created: stamp(i.Created), Used: stamp(i.Used),
		Node: s.o.Node.Name(), Size: uint64(max(0, s.sizes.get(tenant, i.ID)))}
}
