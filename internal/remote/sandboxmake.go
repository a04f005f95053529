package remote

import (
	"context"
	"fmt"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/sandboxes"
)

// Shape returns zero values: the server's template decides what nobody requests.
func (b *Sandboxes) Shape(_ context.Context, _ string, on *bool) (turnstone.Shape, error) {
	return turnstone.Shape{Network: on == nil || *on}, nil
}

// Create creates a sandbox. Values of the shape that are zero are the template's; without a network
// policy, so is Shape.Network, unless it is false.
func (b *Sandboxes) Create(ctx context.Context, spec sandboxes.Spec, progress func(string)) (
	sandboxes.Info, error) {
	r, err := b.request(spec)
	if err != nil {
		return sandboxes.Info{}, err
	}
	if progress != nil {
		progress("creating a sandbox on the server")
	}
	a, err := b.calls.CreateSandbox(ctx, connect.NewRequest(r))
	if err != nil {
		return sandboxes.Info{}, err
	}
	i := infoOf(a.Msg.Sandbox)
	b.made(i.ID, a.Msg.Channel, r.Client.GetNonce())
	if len(spec.Secrets) > 0 {
		if err := b.addSecrets(ctx, i.ID, spec.Secrets); err != nil {
			return sandboxes.Info{}, err
		}
	}
	return i, nil
}

// request returns the call that creates a sandbox of spec.
func (b *Sandboxes) request(spec sandboxes.Spec) (*v1.CreateSandboxRequest, error) {
	refuse := func(what, hint string) (*v1.CreateSandboxRequest, error) {
		return nil, turnstone.Errorf("sandbox.create", turnstone.KindInvalid, "sandbox",
			"%s cannot be set on a server", what).WithHint(hint)
	}
	r := &v1.CreateSandboxRequest{IdempotencyKey: idempotencyKey(), Name: spec.Name,
		Client: b.client(), Live: spec.Live}
	if err := checkSecrets(spec.Session, spec.Secrets); err != nil {
		return nil, err
	}
	switch {
	case spec.TTL <= 0:
		return refuse("a life without an end", "write a time, such as --ttl 720h")
	case spec.On != "" || spec.From != "":
		return refuse("a turn's state", "name a session")
	}
	r.ContextId, r.Branch = spec.Session, spec.Branch
	switch {
	case spec.Image == "":
	case api.IsTemplateName(spec.Image):
		r.Source = &v1.CreateSandboxRequest_Template{Template: spec.Image}
	default:
		r.Source = &v1.CreateSandboxRequest_Image{Image: spec.Image}
	}
	for _, kv := range spec.Env {
		name, value, _ := strings.Cut(kv, "=")
		if r.Env == nil {
			r.Env = map[string]string{}
		}
		r.Env[name] = value
	}
	if spec.Substrate != "auto" {
		r.Substrate = spec.Substrate
	}
	r.Timeout = lifeOf(spec.TTL)
	if s := spec.Shape; s.CPUs != 0 || s.Memory != 0 || s.Disk != 0 {
		r.Machine = &v1.Machine{Cpus: uint32(max(0, s.CPUs)), Memory: uint64(max(0, s.Memory)),
			Disk: uint64(max(0, s.Disk))}
	}
	var err error
	r.Network, err = networkOf(spec)
	return r, err
}

// lifeOf returns a life in the control API, which begins with one second.
func lifeOf(ttl time.Duration) *durationpb.Duration {
	return durationpb.New(max(ttl, time.Second))
}

// networkOf returns the network policy of spec.
func networkOf(spec sandboxes.Spec) (*v1.Network, error) {
	n := &v1.Network{}
	if !spec.Shape.Network {
		n.Mode = v1.NetworkMode_NETWORK_MODE_OFF
	}
	p := spec.Network
	if p == nil {
		if n.Mode == v1.NetworkMode_NETWORK_MODE_UNSPECIFIED {
			return nil, nil
		}
		return n, nil
	}
	what := ""
	switch {
	case len(p.Headers) > 0:
		what = "a secret header"
	case p.NoHostCA:
		what = "--no-host-ca"
	case p.DNS != "":
		what = "a name server"
	}
	if what != "" {
		return nil, turnstone.Errorf("sandbox.create", turnstone.KindInvalid, "sandbox",
			"%s cannot be set on a server", what)
	}
	if spec.Shape.Network {
		n.Mode = v1.NetworkMode_NETWORK_MODE_ON
	}
	n.Allow, n.Deny = p.Allow, p.Deny
	return n, nil
}

// maxClones bounds the clones of one fork in the control API.
const maxClones = 40

// Fork clones a sandbox.
func (b *Sandboxes) Fork(ctx context.Context, id turnstone.SandboxID, f sandboxes.Fork,
	ready func(sandboxes.Info)) ([]sandboxes.Info, error) {
	refuse := func(format string, args ...any) ([]sandboxes.Info, error) {
		return nil, turnstone.NewError("sandbox.fork", turnstone.KindInvalid, "sandbox "+string(id),
			fmt.Errorf(format, args...))
	}
	switch {
	case f.Count < 1 || f.Count > maxClones:
		return refuse("a server makes 1 to %d clones at once, not %d", maxClones, f.Count)
	case f.TTL <= 0:
		return refuse("clones on a server have a life with an end")
	}
	r := &v1.ForkSandboxRequest{SandboxId: string(id), IdempotencyKey: idempotencyKey(),
		Timeout: lifeOf(f.TTL), Secrets: f.Secrets}
	for n := range f.Count {
		r.Clients = append(r.Clients, b.client())
		if f.Prefix != "" {
			r.Names = append(r.Names, fmt.Sprintf("%s-%d", f.Prefix, n+1))
		}
	}
	if f.Prefix != "" {
		if err := sandboxes.CheckName(r.Names[f.Count-1]); err != nil {
			return nil, err
		}
	}
	a, err := b.calls.ForkSandbox(ctx, connect.NewRequest(r))
	if err != nil {
		return nil, err
	}
	var all []sandboxes.Info
	for _, c := range a.Msg.Clones {
		all = append(all, infoOf(c.Sandbox))
		if ready != nil {
			ready(all[len(all)-1])
		}
	}
	if len(all) < f.Count {
		err = turnstone.Errorf("sandbox.fork", turnstone.KindUnavailable, "sandbox "+string(id),
			"the server made %d of %d clones", len(all), f.Count)
	}
	return all, err
}
