// Package service serves containerd's interfaces of sandboxes and tasks for one pod. Every caller
// is containerd, which is trusted; what it passes on of tenants is not.
package service

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
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
	launch    launcher

	mu         sync.Mutex
	id         string
	lone       string // the name of the only container, if there is no pod
	asked      *spec.Pod
	netns      string
	starting   *starting // nil: no start is under way
	pod        machine   // nil: not started
	created    time.Time
	exited     time.Time
	stopped    chan struct{} // closed when the sandbox has ended
	ended      bool
	containers map[string]*container
}

// starting is a start of the sandbox that is under way. It takes long, and nobody waits for it who
// need not.
type starting struct {
	cancel context.CancelFunc
	over   chan struct{}
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
		launch: settings.launch(log.G(ctx).Info), containers: map[string]*container{}}
	go s.forward()
	s.expire()
	if bundle, err := os.Getwd(); err == nil {
		go s.endForgotten(bundle)
	}
	sd.RegisterCallback(func(context.Context) error {
		s.end()
		return nil
	})
	if address := settings.socket; address != "" {
		sd.RegisterCallback(func(context.Context) error { return shim.RemoveSocket(address) })
	}
	return s
}

// expireAfter is the time in which containerd must ask for a sandbox: one that ended before it had
// noted the shim's address will never find the shim.
const expireAfter = 5 * time.Minute

// expire ends a shim that nobody asks for a sandbox.
func (s *Service) expire() {
	time.AfterFunc(expireAfter, func() {
		s.mu.Lock()
		unused := s.asked == nil && len(s.containers) == 0
		s.mu.Unlock()
		if unused {
			s.end() // one that is created meanwhile cannot start
			s.shutdown.Shutdown()
		}
	})
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
	if s.asked != nil || s.lone != "" {
		return nil, fail(fmt.Errorf("sandbox %s: %w", r.GetSandboxID(), errdefs.ErrAlreadyExists))
	}
	if s.ended {
		return nil, fail(fmt.Errorf("sandbox %s has ended: %w", r.GetSandboxID(),
			errdefs.ErrFailedPrecondition))
	}
	s.id, s.asked, s.netns = r.GetSandboxID(), asked, r.GetNetnsPath()
	return &sandboxAPI.CreateSandboxResponse{}, nil
}

// StartSandbox implements the sandbox API.
func (x *sandboxes) StartSandbox(ctx context.Context, r *sandboxAPI.StartSandboxRequest) (
	*sandboxAPI.StartSandboxResponse, error) {
	if x.s.single() {
		return nil, fail(fmt.Errorf("the sandbox is a container's: %w",
			errdefs.ErrFailedPrecondition))
	}
	created, err := x.s.start(ctx)
	if err != nil {
		return nil, fail(fmt.Errorf("sandbox %.140s: %w", r.GetSandboxID(), err))
	}
	described, err := typeurl.MarshalAnyToProto(&specs.Spec{Version: specs.Version,
		Linux: &specs.Linux{}, Annotations: map[string]string{}})
	if err != nil {
		return nil, fail(err)
	}
	return &sandboxAPI.StartSandboxResponse{Pid: uint32(os.Getpid()), Spec: described,
		CreatedAt: timestamppb.New(created)}, nil
}

// start starts the sandbox. The end of the sandbox ends its start.
func (s *Service) start(ctx context.Context) (created time.Time, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.mu.Lock()
	if s.asked == nil || s.starting != nil || s.pod != nil || s.ended {
		s.mu.Unlock()
		return created, fmt.Errorf("it is not waiting for its start: %w",
			errdefs.ErrFailedPrecondition)
	}
	now := &starting{cancel: cancel, over: make(chan struct{})}
	s.starting = now
	asked, id, netns := s.asked, s.id, s.netns
	s.mu.Unlock()
	defer close(now.over)
	if err := joinCgroup(asked.CgroupParent, id); err != nil {
		log.G(ctx).WithError(err).Warn("the pod's control group does not bound the sandbox")
	}
	p, err := s.launch(ctx, asked, netns)
	s.mu.Lock()
	s.starting = nil
	ended := s.ended
	if err == nil && !ended {
		s.pod, s.created = p, time.Now()
		created = s.created
	}
	s.mu.Unlock()
	switch {
	case ended && err == nil:
		_ = p.Close()
		fallthrough
	case ended:
		return created, fmt.Errorf("it was stopped during its start: %w",
			errdefs.ErrFailedPrecondition)
	case err != nil:
		return created, err
	}
	go s.watch(p)
	return created, nil
}

// watch waits for the end of the sandbox.
func (s *Service) watch(p machine) {
	<-p.Done()
	if err := p.Err(); err != nil {
		log.G(s.ctx).WithError(err).Error("the sandbox has ended")
	}
	s.end()
}

// owner names whose a container of the pod is.
func (s *Service) owner(container string) spec.Owner {
	s.mu.Lock()
	defer s.mu.Unlock()
	return spec.Owner{Container: container, Sandbox: s.id, UID: s.asked.UID,
		Below: pod.Below}
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
	p, was, start := s.pod, s.ended, s.starting
	s.ended = true
	all := slices.Collect(maps.Values(s.containers))
	s.mu.Unlock()
	if was {
		return
	}
	if start != nil {
		start.cancel()
		<-start.over
	}
	if p != nil {
		_ = p.Close()
	}
	s.abandon(all)
	s.mu.Lock()
	s.exited = time.Now()
	s.mu.Unlock()
	close(s.stopped)
}

// abandon ends creations that are under way, since the root file systems that they have mounted
// would stay after the shim's end, and what waits for processes that will never start.
func (s *Service) abandon(all []*container) {
	t := time.NewTimer(abandonLimit)
	defer t.Stop()
	for _, c := range all {
		c.cancel()
		select {
		case <-c.made:
			c.endStart(t.C)
			c.retireAll()
		case <-t.C:
			log.G(s.ctx).Errorf("the creation of container %s does not end", c.id)
			return
		}
	}
}

// abandonLimit bounds the wait for creations whose sandbox has ended.
const abandonLimit = 20 * time.Second

// stop ends the sandbox, and returns when it has ended.
func (s *Service) stop(ctx context.Context) error {
	go s.end() // its end does not depend on the caller's patience
	select {
	case <-s.stopped:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// StopSandbox implements the sandbox API: containers that still run are killed.
func (x *sandboxes) StopSandbox(ctx context.Context, _ *sandboxAPI.StopSandboxRequest) (
	*sandboxAPI.StopSandboxResponse, error) {
	if err := x.s.stop(ctx); err != nil {
		return nil, fail(err)
	}
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
func (x *sandboxes) ShutdownSandbox(ctx context.Context, _ *sandboxAPI.ShutdownSandboxRequest) (
	*sandboxAPI.ShutdownSandboxResponse, error) {
	go func() {
		<-x.s.stopped
		time.AfterFunc(shutdownAfter, x.s.shutdown.Shutdown)
	}()
	if err := x.s.stop(ctx); err != nil {
		return nil, fail(err)
	}
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
func (s *Service) running() (machine, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pod == nil || s.ended {
		return nil, errNotRunning
	}
	return s.pod, nil
}

var errNotRunning = fmt.Errorf("the sandbox does not run: %w", errdefs.ErrFailedPrecondition)
