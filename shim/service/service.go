// Package service serves containerd's interfaces of sandboxes and tasks for one pod. Every caller
// is containerd, which is trusted; what it passes on of tenants is not.
package service

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	sandboxAPI "github.com/containerd/containerd/api/runtime/sandbox/v1"
	taskAPI "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/containerd/v2/pkg/shutdown"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/log"
	"github.com/containerd/ttrpc"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/types/known/timestamppb"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/shim/pod"
	"turnstone.dev/turnstone/shim/spec"
)

// A Service is the shim of one pod.
type Service struct {
	ctx       context.Context
	publisher shim.Publisher
	shutdown  shutdown.Service
	settings  Settings
	events    chan event

	mu         sync.Mutex
	id         string
	asked      *spec.Pod
	netns      string
	pod        *pod.Pod // nil: not started
	created    time.Time
	exited     time.Time
	stopped    chan struct{} // closed when the sandbox has ended
	ended      bool
	containers map[string]*container
}

type event struct {
	topic string
	what  any
}

// maxEvents is the number of events that wait for containerd.
const maxEvents = 1024

// New returns the service, which ends when sd does.
func New(ctx context.Context, publisher shim.Publisher, sd shutdown.Service,
	settings Settings) *Service {
	s := &Service{ctx: ctx, publisher: publisher, shutdown: sd, settings: settings,
		events: make(chan event, maxEvents), stopped: make(chan struct{}),
		containers: map[string]*container{}}
	go s.forward()
	sd.RegisterCallback(func(context.Context) error {
		s.end()
		return nil
	})
	if address, err := shim.ReadAddress("address"); err == nil {
		sd.RegisterCallback(func(context.Context) error { return shim.RemoveSocket(address) })
	}
	return s
}

// RegisterTTRPC registers both interfaces.
func (s *Service) RegisterTTRPC(server *ttrpc.Server) error {
	sandboxAPI.RegisterTTRPCSandboxService(server, s.sandbox())
	taskAPI.RegisterTTRPCTaskService(server, &tasks{s})
	return nil
}

// forward publishes events in order.
func (s *Service) forward() {
	ns, _ := namespaces.Namespace(s.ctx)
	ctx := namespaces.WithNamespace(context.Background(), ns)
	for e := range s.events {
		limited, cancel := context.WithTimeout(ctx, 5*time.Second)
		if err := s.publisher.Publish(limited, e.topic, e.what); err != nil {
			log.G(ctx).WithError(err).Error("publish event")
		}
		cancel()
	}
}

func (s *Service) send(topic string, what any) {
	select {
	case s.events <- event{topic, what}:
	default: // containerd has not answered for long, and asks for states when it returns
	}
}

// fail returns an error in the form of the interfaces.
func fail(err error) error {
	if err == nil {
		return nil
	}
	var refused *spec.Refusal
	switch {
	case errors.As(err, &refused), turnstone.KindOf(err) == turnstone.KindInvalid:
		err = fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	case turnstone.KindOf(err) == turnstone.KindExhausted:
		err = fmt.Errorf("%w: %w", err, errdefs.ErrResourceExhausted)
	case turnstone.KindOf(err) == turnstone.KindNotFound:
		err = fmt.Errorf("%w: %w", err, errdefs.ErrNotFound)
	}
	if hint := turnstone.HintOf(err); hint != "" {
		err = fmt.Errorf("%w (%s)", err, hint)
	}
	return errgrpc.ToGRPC(err)
}

// sandbox returns the interface of sandboxes.
func (s *Service) sandbox() sandboxAPI.TTRPCSandboxService { return &sandboxes{s} }

type sandboxes struct{ s *Service }

// CreateSandbox implements the sandbox API: it checks what the pod asks for.
func (x *sandboxes) CreateSandbox(_ context.Context, r *sandboxAPI.CreateSandboxRequest) (
	*sandboxAPI.CreateSandboxResponse, error) {
	s := x.s
	asked, err := spec.ParsePod(r.GetOptions(), s.settings.bounds())
	if err != nil {
		return nil, fail(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.asked != nil {
		return nil, fail(fmt.Errorf("sandbox %s: %w", r.GetSandboxID(), errdefs.ErrAlreadyExists))
	}
	s.id, s.asked, s.netns = r.GetSandboxID(), asked, r.GetNetnsPath()
	return &sandboxAPI.CreateSandboxResponse{}, nil
}

// StartSandbox implements the sandbox API.
func (x *sandboxes) StartSandbox(ctx context.Context, r *sandboxAPI.StartSandboxRequest) (
	*sandboxAPI.StartSandboxResponse, error) {
	s := x.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.asked == nil || s.pod != nil || s.ended {
		return nil, fail(fmt.Errorf("sandbox %s: it is not waiting for its start: %w",
			r.GetSandboxID(), errdefs.ErrFailedPrecondition))
	}
	if err := joinCgroup(s.asked.CgroupParent, s.id); err != nil {
		log.G(ctx).WithError(err).Warn("the pod's control group does not bound the sandbox")
	}
	p, err := pod.Start(ctx, s.settings.options(log.G(ctx).Info), s.asked, s.netns)
	if err != nil {
		return nil, fail(err)
	}
	s.pod, s.created = p, time.Now()
	go func() {
		<-p.Done()
		if err := p.Err(); err != nil {
			log.G(s.ctx).WithError(err).Error("the sandbox has ended")
		}
		s.end()
	}()
	described, err := typeurl.MarshalAnyToProto(&specs.Spec{Version: specs.Version,
		Linux: &specs.Linux{}, Annotations: map[string]string{}})
	if err != nil {
		return nil, fail(err)
	}
	return &sandboxAPI.StartSandboxResponse{Pid: uint32(os.Getpid()), Spec: described,
		CreatedAt: timestamppb.New(s.created)}, nil
}

// owner names whose a container of the pod is.
func (s *Service) owner(container string) spec.Owner {
	s.mu.Lock()
	defer s.mu.Unlock()
	return spec.Owner{Container: container, Sandbox: s.id, UID: s.asked.UID}
}

// Platform implements the sandbox API.
func (x *sandboxes) Platform(context.Context, *sandboxAPI.PlatformRequest) (
	*sandboxAPI.PlatformResponse, error) {
	return &sandboxAPI.PlatformResponse{
		Platform: &types.Platform{OS: "linux", Architecture: "amd64"}}, nil
}

// end ends the sandbox, once.
func (s *Service) end() {
	s.mu.Lock()
	p, was := s.pod, s.ended
	s.ended = true
	s.mu.Unlock()
	if was {
		return
	}
	if p != nil {
		_ = p.Close()
	}
	s.mu.Lock()
	s.exited = time.Now()
	s.mu.Unlock()
	close(s.stopped)
}

// StopSandbox implements the sandbox API: containers that still run are killed.
func (x *sandboxes) StopSandbox(context.Context, *sandboxAPI.StopSandboxRequest) (
	*sandboxAPI.StopSandboxResponse, error) {
	x.s.end()
	<-x.s.stopped
	return &sandboxAPI.StopSandboxResponse{}, nil
}

// WaitSandbox implements the sandbox API.
func (x *sandboxes) WaitSandbox(ctx context.Context, _ *sandboxAPI.WaitSandboxRequest) (
	*sandboxAPI.WaitSandboxResponse, error) {
	select {
	case <-x.s.stopped:
	case <-ctx.Done():
		return nil, fail(ctx.Err())
	}
	x.s.mu.Lock()
	defer x.s.mu.Unlock()
	return &sandboxAPI.WaitSandboxResponse{ExitedAt: timestamppb.New(x.s.exited)}, nil
}

// SandboxStatus implements the sandbox API.
func (x *sandboxes) SandboxStatus(_ context.Context, r *sandboxAPI.SandboxStatusRequest) (
	*sandboxAPI.SandboxStatusResponse, error) {
	s := x.s
	s.mu.Lock()
	defer s.mu.Unlock()
	res := &sandboxAPI.SandboxStatusResponse{SandboxID: r.GetSandboxID(),
		Pid: uint32(os.Getpid()), State: "SANDBOX_NOTREADY",
		CreatedAt: timestamppb.New(s.created)}
	switch {
	case s.ended:
		res.ExitedAt = timestamppb.New(s.exited)
	case s.pod != nil:
		res.State = "SANDBOX_READY"
		if r.GetVerbose() {
			res.Info = map[string]string{"substrate": s.pod.Substrate()}
		}
	}
	return res, nil
}

// PingSandbox implements the sandbox API.
func (x *sandboxes) PingSandbox(context.Context, *sandboxAPI.PingRequest) (
	*sandboxAPI.PingResponse, error) {
	return &sandboxAPI.PingResponse{}, nil
}

// ShutdownSandbox implements the sandbox API: the shim ends after its answer.
func (x *sandboxes) ShutdownSandbox(context.Context, *sandboxAPI.ShutdownSandboxRequest) (
	*sandboxAPI.ShutdownSandboxResponse, error) {
	x.s.end()
	<-x.s.stopped
	time.AfterFunc(shutdownAfter, x.s.shutdown.Shutdown)
	return &sandboxAPI.ShutdownSandboxResponse{}, nil
}

// shutdownAfter lets the answer to the last request arrive.
const shutdownAfter = 50 * time.Millisecond

// UpdateSandbox implements the sandbox API.
func (x *sandboxes) UpdateSandbox(context.Context, *sandboxAPI.UpdateSandboxRequest) (
	*sandboxAPI.UpdateSandboxResponse, error) {
	return &sandboxAPI.UpdateSandboxResponse{}, nil
}

// SandboxMetrics implements the sandbox API.
func (x *sandboxes) SandboxMetrics(ctx context.Context, _ *sandboxAPI.SandboxMetricsRequest) (
	*sandboxAPI.SandboxMetricsResponse, error) {
	p, err := x.s.running()
	if err != nil {
		return nil, fail(err)
	}
	m, err := metricsOf(p.Used())
	if err != nil {
		return nil, fail(err)
	}
	return &sandboxAPI.SandboxMetricsResponse{Metrics: &types.Metric{
		Timestamp: timestamppb.Now(), ID: x.s.id, Data: m}}, nil
}

// running returns the pod.
func (s *Service) running() (*pod.Pod, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pod == nil || s.ended {
		return nil, fmt.Errorf("the sandbox does not run: %w", errdefs.ErrFailedPrecondition)
	}
	return s.pod, nil
}
