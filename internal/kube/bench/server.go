package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	connectv1 "turnstone.dev/turnstone/internal/api/turnstone/v1/turnstonev1connect"
	"turnstone.dev/turnstone/internal/kube/agents"
	"turnstone.dev/turnstone/internal/kube/kubetest"
	"turnstone.dev/turnstone/internal/kube/simnode"
	"turnstone.dev/turnstone/internal/server/config"
	"turnstone.dev/turnstone/internal/server/peers"
)

// A server is the built turn-server with the roles gateway and controller, and clients of it.
type server struct {
	run   *kubetest.Program
	dir   string
	url   string
	boxes connectv1.SandboxServiceClient
	http  *http.Client
}

// startServer starts the server, its simulated nodes, and clients with a token of a tenant.
func startServer(ctx context.Context, bin, dir, tenant string, nodes int) (*server, error) {
	s := &server{dir: dir}
	home, at := filepath.Join(dir, "home"), "unix:"+filepath.Join(dir, "peers")
	s.run = &kubetest.Program{Path: filepath.Join(bin, "turn-server"),
		Args: []string{"serve", "--role", "gateway", "--role", "controller", "--listen", "127.0.0.1:0"},
		Env: []string{"TURN_HOME=" + home, "TURN_SERVER_PEERS_LISTEN=" + at, "TURN_SERVER_LIMITS_RATE=1000000",
			"TURN_SERVER_LIMITS_BURST=1000000", "TURN_SERVER_QUOTA_SANDBOXES=1000000"}}
	if err := s.run.Start(); err != nil {
		return nil, err
	}
	address, err := s.run.Address(ctx)
	if err != nil {
		s.run.End()
		return nil, err
	}
	s.url = "http://" + address
	create := exec.CommandContext(ctx, filepath.Join(bin, "turn"), "token", "create", "--name", "bench", "--tenant", tenant,
		"--ttl", "2h", "--scope", "sandboxes:*,sandboxes:manage,usage:read")
	create.Env = append(os.Environ(), "TURN_HOME="+filepath.Join(dir, "client"), "TURN_HOST=unix:"+filepath.Join(home, "server.sock"))
	token, err := create.Output()
	var p *peers.Peers
	if err == nil {
		p, err = peers.Open(config.Peers{}, nil)
	}
	if err == nil {
		to := connectv1.NewControllerServiceClient(&http.Client{Transport: p.Transport(at, config.Controller)},
			"http://controller", api.ClientOptions()...)
		for i := 0; i < nodes && err == nil; i++ {
			name := fmt.Sprintf("n%03d", i)
			err = simnode.New(simnode.Options{Name: name, Socket: filepath.Join(dir, name), To: to}).Start(ctx)
		}
	}
	if err != nil {
		s.run.End()
		return nil, fmt.Errorf("%w: %s", err, s.run.Log())
	}
	s.http = &http.Client{Transport: bearer{strings.TrimSpace(string(token)),
		&http.Transport{MaxIdleConnsPerHost: 256}}}
	s.boxes = connectv1.NewSandboxServiceClient(s.http, s.url, api.ClientOptions()...)
	return s, nil
}

type bearer struct {
	token string
	next  http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return b.next.RoundTrip(r)
}

// cpu returns the processor time that the server has used.
func (s *server) cpu() time.Duration { return cpuOf(s.run.PID()) }

// cpuOf returns the processor time that a process has used.
func cpuOf(pid int) time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	f := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	user, _ := strconv.Atoi(f[11])
	system, _ := strconv.Atoi(f[12])
	return time.Duration(user+system) * 10 * time.Millisecond
}

// memory returns what the server has in memory now, and had at most, in MiB.
func (s *server) memory() (now, most int) {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.run.PID()))
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		kib, _ := strconv.Atoi(f[1])
		switch f[0] {
		case "VmRSS:":
			now = kib >> 10
		case "VmHWM:":
			most = kib >> 10
		}
	}
	return now, most
}

// Create implements agents.Server.
func (s *server) Create(ctx context.Context, _ string, r *v1.CreateSandboxRequest) (*v1.Sandbox, error) {
	c := &v1.ChannelClient{ClientPublicKey: make([]byte, 32), Nonce: make([]byte, 32)}
	_, _ = rand.Read(c.Nonce)
	c.ClientPublicKey[0] = 1
	r.Client = c
	a, err := s.boxes.CreateSandbox(ctx, connect.NewRequest(r))
	if err != nil {
		return nil, api.FromConnect(err)
	}
	return a.Msg.Sandbox, nil
}

// List implements agents.Server.
func (s *server) List(ctx context.Context, _, by string) (all []*v1.Sandbox, err error) {
	a, err := s.boxes.ListSandboxes(ctx, connect.NewRequest(&v1.ListSandboxesRequest{
		Filter: &v1.SandboxFilter{ManagedBy: by}}))
	if err != nil {
		return nil, api.FromConnect(err)
	}
	for _, x := range a.Msg.Sandboxes {
		if !x.Removed {
			all = append(all, x)
		}
	}
	return all, nil
}

// Delete implements agents.Server.
func (s *server) Delete(ctx context.Context, _, id string) error {
	_, err := s.boxes.DeleteSandbox(ctx, connect.NewRequest(&v1.DeleteSandboxRequest{SandboxId: id}))
	if err = api.FromConnect(err); turnstone.KindOf(err) == turnstone.KindNotFound {
		return nil
	}
	return err
}

var errUnused = errors.New("the benchmark does not do that")

// Pause implements agents.Server.
func (s *server) Pause(context.Context, string, string) error { return errUnused }

// Resume implements agents.Server.
func (s *server) Resume(context.Context, string, string) error { return errUnused }

// SetLife implements agents.Server.
func (s *server) SetLife(context.Context, string, string, time.Duration) error { return errUnused }

// FollowContainer implements agents.Server.
func (s *server) FollowContainer(context.Context, string, string, agents.Main, func(agents.Process)) error {
	return errUnused
}
