package e2b

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/server/auth"
)

// Templates of E2B, and ours.
const (
	interpreterTemplate = "code-interpreter"
	snapshotPrefix      = "sn_"
)

// Keys of metadata that name the session of a new sandbox, and a branch of it.
const (
	sessionKey = "turnstone.session"
	branchKey  = "turnstone.branch"
)

// create makes a sandbox.
func (d *Door) create(w http.ResponseWriter, r *http.Request) error {
	var q newSandbox
	if err := body(w, r, &q); err != nil {
		return err
	}
	p, _ := auth.FromContext(r.Context())
	key, err := idempotency(r.Header)
	if err != nil {
		return err
	}
	m, err := q.request(key, unsaid(r))
	if err != nil {
		return err
	}
	if m.ContextId == "" && m.GetSnapshotId() == "" && d.o.Sessions {
		if m.ContextId, err = d.newSession(r.Context(), key); err != nil {
			return err
		}
	}
	a, err := d.sandboxes.CreateSandbox(r.Context(), connect.NewRequest(m))
	if err != nil {
		return err
	}
	s := a.Msg.Sandbox
	if _, err := d.find(turnstone.SandboxID(s.GetSandboxId())); err != nil {
		// another node has it, where this process is no door
		_, _ = d.sandboxes.DeleteSandbox(context.WithoutCancel(r.Context()),
			connect.NewRequest(&v1.DeleteSandboxRequest{SandboxId: s.GetSandboxId()}))
		return turnstone.Errorf("e2b.create", turnstone.KindUnavailable, "the sandbox",
			"was placed on another node").WithHint("use a server whose only node is the one with the door")
	}
	return answer(w, http.StatusCreated, d.answerOf(s, p))
}

// newSession makes a session without a name for a sandbox.
func (d *Door) newSession(ctx context.Context, key string) (string, error) {
	a, err := d.sessions.CreateSession(ctx, connect.NewRequest(&v1.CreateSessionRequest{IdempotencyKey: key}))
	if err != nil {
		return "", err
	}
	return a.Msg.Session.GetSessionId(), nil
}

// idempotency returns the key of a request, in a form that the control API accepts.
func idempotency(h http.Header) (string, error) {
	key := h.Get("Idempotency-Key")
	if key == "" {
		return "e2b-" + rand.Text(), nil
	}
	const most = 1024
	if len(key) > most {
		return "", bad("the idempotency key is too long")
	}
	sum := sha256.Sum256([]byte(key))
	return "e2b-" + hex.EncodeToString(sum[:16]), nil
}

// request returns the call that makes the sandbox, whose time is unsaid if the request names none. What
// cannot be had here is an error.
func (q *newSandbox) request(key string, unsaid time.Duration) (*v1.CreateSandboxRequest, error) {
	if err := q.check(); err != nil {
		return nil, err
	}
	m := &v1.CreateSandboxRequest{IdempotencyKey: key, Env: q.EnvVars, Metadata: q.Metadata}
	switch name := strings.ToLower(q.TemplateID); {
	case name == "" || name == "base":
	case name == "code-interpreter-v1":
		m.Source = &v1.CreateSandboxRequest_Template{Template: interpreterTemplate}
	case strings.HasPrefix(q.TemplateID, snapshotPrefix):
		m.Source = &v1.CreateSandboxRequest_SnapshotId{SnapshotId: q.TemplateID}
	case api.IsTemplateName(q.TemplateID):
		m.Source = &v1.CreateSandboxRequest_Template{Template: q.TemplateID}
	default:
		m.Source = &v1.CreateSandboxRequest_Image{Image: q.TemplateID}
	}
	var err error
	if m.Timeout, err = timeout(q.Timeout, unsaid); err != nil {
		return nil, err
	}
	if m.Network, err = q.network(); err != nil {
		return nil, err
	}
	m.ContextId, m.Branch = q.Metadata[sessionKey], q.Metadata[branchKey]
	if m.ContextId == "" && m.Branch != "" {
		return nil, bad("the metadata " + branchKey + " needs " + sessionKey)
	}
	return m, nil
}

// unsaid returns E2B's time to the stop of a sandbox whose request r names none. The calls of version 2
// have another one, and stock clients leave the choice to the server.
func unsaid(r *http.Request) time.Duration {
	if strings.HasPrefix(r.URL.Path, "/v2/") {
		return 300 * time.Second
	}
	return 15 * time.Second
}

// timeout returns a time to a sandbox's stop.
func timeout(seconds *int64, or time.Duration) (*durationpb.Duration, error) {
	d := or
	if seconds != nil {
		if *seconds < 0 || *seconds > int64(longest/time.Second) {
			return nil, bad("the timeout is not from 0 to 2592000 seconds (30 days)")
		}
		d = max(time.Duration(*seconds)*time.Second, time.Second)
	}
	return durationpb.New(d), nil
}

// check refuses what no sandbox here can have.
func (q *newSandbox) check() error {
	on := func(b *bool) bool { return b != nil && *b }
	for _, f := range []struct {
		asked bool
		what  string
	}{
		{on(q.AutoPause), "to be paused when its time is up (on_timeout)"},
		{q.AutoResume != nil && q.AutoResume.Enabled, "to be resumed by traffic (auto_resume)"},
		{set(q.MCP), "an MCP gateway (mcp)"},
		{set(q.IAM), "an identity of its own (iam)"},
		{len(q.VolumeMounts) > 0, "volumes (volume_mounts)"},
	} {
		if f.asked {
			return bad("a sandbox of this server cannot have " + f.what)
		}
	}
	return nil
}

// set reports whether a field that is not understood has a value.
func set(raw []byte) bool { return len(raw) > 0 && string(raw) != "null" && string(raw) != "{}" }

// everywhere are E2B's words for all destinations.
var everywhere = []string{"0.0.0.0/0", "all", "ALL_TRAFFIC"}

// network returns the policy of the sandbox's network. Ours refuses all that is not allowed as soon
// as something is allowed; E2B's allowed destinations are exceptions of the denied ones.
func (q *newSandbox) network() (*v1.Network, error) {
	if q.AllowInternet != nil && !*q.AllowInternet {
		if q.Network != nil && len(q.Network.AllowOut) > 0 {
			return &v1.Network{Allow: q.Network.AllowOut}, nil
		}
		return &v1.Network{Mode: v1.NetworkMode_NETWORK_MODE_OFF}, nil
	}
	n := q.Network
	if n == nil {
		return nil, nil
	}
	// Clients up to 2.59 send allow_public_traffic: true beside any rule, because it is E2B's default. Ports need the
	// traffic access token here in any case.
	if set(n.EgressProxy) || set(n.Rules) || n.MaskRequestHost != nil || len(n.HTTPSPorts) > 0 {
		return nil, bad("the network has only the rules allow_out and deny_out here")
	}
	all := slices.ContainsFunc(n.DenyOut, func(s string) bool { return slices.Contains(everywhere, s) })
	switch {
	case all && len(n.AllowOut) == 0:
		return &v1.Network{Mode: v1.NetworkMode_NETWORK_MODE_OFF}, nil
	case all:
		return &v1.Network{Allow: n.AllowOut}, nil
	case len(n.AllowOut) > 0 && len(n.DenyOut) > 0:
		return nil, bad("allow_out has no exceptions of some denied destinations here: deny all, or " +
			"leave allow_out out")
	case len(n.DenyOut) > 0:
		return &v1.Network{Deny: n.DenyOut}, nil
	}
	return nil, nil // allowed destinations are no exceptions of anything
}
