package remote

import (
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/sandboxes"
)

// states are the states of the control API.
var states = map[v1.SandboxState]sandboxes.State{
	v1.SandboxState_SANDBOX_STATE_CREATING: sandboxes.StateCreating,
	v1.SandboxState_SANDBOX_STATE_READY:    sandboxes.StateReady,
	v1.SandboxState_SANDBOX_STATE_RUNNING:  sandboxes.StateRunning,
	v1.SandboxState_SANDBOX_STATE_STOPPED:  sandboxes.StateStopped,
	v1.SandboxState_SANDBOX_STATE_FAILED:   sandboxes.StateFailed,
}

// reasons says why a sandbox has ended.
var reasons = map[v1.SandboxReason]string{
	v1.SandboxReason_SANDBOX_REASON_STOP_REQUESTED: "on request",
	v1.SandboxReason_SANDBOX_REASON_TIME_UP:        "its time was up",
	v1.SandboxReason_SANDBOX_REASON_CREATE_FAILED:  "it could not be created",
	v1.SandboxReason_SANDBOX_REASON_MACHINE_DIED:   "its machine died",
	v1.SandboxReason_SANDBOX_REASON_HOLDER_DIED:    "its holder died",
	v1.SandboxReason_SANDBOX_REASON_NODE_LOST:      "the node lost it",
}

// ReasonText says why a sandbox has ended, for a person.
func ReasonText(r v1.SandboxReason) string {
	if text := reasons[r]; text != "" {
		return text
	}
	return "for an unknown reason"
}

// maxText bounds a name in a server's answer in bytes: a gateway chooses them, and no name is longer.
const maxText = 256

// maxManaged bounds the path of what manages a sandbox in bytes, as the control API does.
const maxManaged = 512

func short(s string) string { return api.Clean(s, maxText) }

// infoOf returns what a server says of a sandbox. A state of a newer server counts as running,
// because nothing says that the sandbox has ended.
func infoOf(s *v1.Sandbox) sandboxes.Info {
	i := sandboxes.Info{ID: turnstone.SandboxID(s.GetSandboxId()), Name: short(s.GetName()),
		Image: short(s.GetTemplate()), Template: turnstone.Digest(short(s.GetTemplateDigest())),
		Substrate: short(s.GetSubstrate()), Isolation: short(s.GetSubstrate()), Paused: s.GetPaused(),
		Parent: turnstone.SandboxID(s.GetParentId()), Workdir: s.GetWorkdir(), User: s.GetUser(),
		TemplateSize: turnstone.Bytes(min(s.GetTemplateSize(), 1<<62)),
		Version:      short(s.GetVersion()), ManagedBy: api.Clean(s.GetManagedBy(), maxManaged)}
	i.Shape = turnstone.Shape{CPUs: int(s.GetMachine().GetCpus()),
		Memory:  turnstone.Bytes(min(s.GetMachine().GetMemory(), 1<<62)),
		Disk:    turnstone.Bytes(min(s.GetMachine().GetDisk(), 1<<62)),
		Network: s.GetNetwork()}
	known := false
	if i.State, known = states[s.GetState()]; !known {
		i.State = sandboxes.StateRunning
	}
	if i.State.Final() {
		i.Reason = reasons[s.GetReason()]
	}
	if session := short(s.GetContextId()); session != "" {
		i.Session = &sandboxes.SessionInfo{Name: session}
		i.Label = "session " + session
	}
	if node := short(s.GetNode()); node != "" {
		i.Isolation = strings.TrimSpace(i.Isolation + " on " + node)
	}
	i.Created, i.Changed = s.GetCreated().AsTime(), s.GetChanged().AsTime()
	if (*timestamppb.Timestamp)(nil) != s.GetExpires() {
		t := s.GetExpires().AsTime()
		i.Expires = &t
	}
	if s.GetNodeLost().IsValid() {
		t := s.GetNodeLost().AsTime()
		i.NodeLost = &t
	}
	return i
}
