package remote

import (
	"context"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
)

// Usage returns what the caller's tenant used since a time, or this month if it is zero: in one session,
// by name or ID, or in all.
func (s *Server) Usage(ctx context.Context, session string, since time.Time) (*turnstone.UsageReport,
	error) {
	ask := &v1.GetUsageRequest{Session: session}
	if !since.IsZero() {
		ask.Since = timestamppb.New(since)
	}
	a, err := s.Turns.GetUsage(ctx, connect.NewRequest(ask))
	if err != nil {
		return nil, err
	}
	m := a.Msg
	return &turnstone.UsageReport{Session: session, Since: m.GetSince().AsTime(),
		Until: m.GetUntil().AsTime(), Turns: m.GetTurns(), Sandboxes: m.GetSandboxes(),
		Used: turnstone.Used{CPU: turnstone.Millis(m.GetUsed().GetCpu().AsDuration()),
			Sent:     turnstone.Bytes(m.GetUsed().GetBytesOut()),
			Received: turnstone.Bytes(m.GetUsed().GetBytesIn())},
		SandboxSeconds: m.GetSandboxTime().GetSeconds(), TurnSeconds: m.GetTurnTime().GetSeconds(),
		CPUSeconds: m.GetCpuTime().GetSeconds(), MemorySeconds: m.GetMemoryMibSeconds(),
		ActiveSandboxes: m.GetActiveSandboxes(), ActiveTurns: m.GetActiveTurns(),
		Stored: turnstone.Bytes(m.GetStoredBytes())}, nil
}
