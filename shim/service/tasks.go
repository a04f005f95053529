package service

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	eventstypes "github.com/containerd/containerd/api/events"
	taskAPI "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/runtime"
	"github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"turnstone.dev/turnstone/shim/guest"
	"turnstone.dev/turnstone/shim/spec"
)

// tasks serves the interface of tasks. A task is a container of the pod, and its process number is
// the shim's: no process of the host is the container's.
type tasks struct{ s *Service }

// Bounds of calls whose caller has none: a sandbox may never answer.
const (
	createLimit = 30 * time.Minute // an image is copied meanwhile
	callLimit   = 2 * time.Minute
)

func self() uint32 { return uint32(os.Getpid()) }

// Create implements the task API: it copies the root file system into the sandbox.
func (t *tasks) Create(ctx context.Context, r *taskAPI.CreateTaskRequest) (
	*taskAPI.CreateTaskResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, createLimit)
	defer cancel()
	s := t.s
	if r.GetCheckpoint() != "" {
		return nil, fail(fmt.Errorf("a container of runtime class turnstone is not "+
			"restored from a checkpoint: %w", errdefs.ErrNotImplemented))
	}
	p, err := s.place(r.GetID())
	if err != nil {
		return nil, fail(err)
	}
	c := s.newContainer(r, cancel)
	if err := s.reserve(ctx, c); err != nil {
		return nil, fail(err)
	}
	defer close(c.made)
	if err := s.make(ctx, p, c, r); err != nil {
		s.forget(c)
		return nil, fail(err)
	}
	s.send(runtime.TaskCreateEventTopic, &eventstypes.TaskCreate{ContainerID: r.GetID(),
		Bundle: r.GetBundle(), Rootfs: r.GetRootfs(), Pid: self(),
		IO: &eventstypes.TaskIO{Stdin: r.GetStdin(), Stdout: r.GetStdout(), Stderr: r.GetStderr(),
			Terminal: r.GetTerminal()}})
	return &taskAPI.CreateTaskResponse{Pid: self()}, nil
}

// make makes the container that r asks for, in the pod's sandbox p. A container without a pod (p is
// nil) is made when it starts, with its sandbox.
func (s *Service) make(ctx context.Context, p machine, c *container,
	r *taskAPI.CreateTaskRequest) error {
	text, err := os.ReadFile(filepath.Join(r.GetBundle(), "config.json"))
	if err != nil {
		return err
	}
	root := filepath.Join(r.GetBundle(), "rootfs")
	if p == nil {
		own, err := s.adopt(c.id, text)
		if err != nil {
			return err
		}
		if own != "" && len(r.GetRootfs()) == 0 {
			root = own
		}
	}
	if c.spec, err = spec.Parse(text, s.owner(c.id)); err != nil {
		return err
	}
	c.spec.Terminal, c.spec.Process.Terminal = r.GetTerminal(), r.GetTerminal()
	files := rootOf(r, root)
	fill := func(ctx context.Context, p machine) (group, error) { return p.Create(ctx, c.id, files, c.spec) }
	var made group = &loneGroup{s: s, c: c, fill: fill}
	if p != nil {
		if made, err = fill(ctx, p); err != nil {
			return err
		}
	}
	s.mu.Lock()
	c.pod = made
	s.mu.Unlock()
	return nil
}

// Start implements the task API.
func (t *tasks) Start(ctx context.Context, r *taskAPI.StartRequest) (
	*taskAPI.StartResponse, error) {
	c, p, err := t.s.find(r.GetID(), r.GetExecID())
	if err != nil {
		return nil, fail(err)
	}
	limit := callLimit
	if p.exec == "" && t.s.single() { // its sandbox starts, and its image is copied
		limit = createLimit
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := p.start(ctx); err != nil {
		return nil, fail(err)
	}
	if p.exec == "" {
		t.s.send(runtime.TaskStartEventTopic,
			&eventstypes.TaskStart{ContainerID: c.id, Pid: self()})
	} else {
		t.s.send(runtime.TaskExecStartedEventTopic,
			&eventstypes.TaskExecStarted{ContainerID: c.id, ExecID: p.exec, Pid: self()})
	}
	p.announce()
	return &taskAPI.StartResponse{Pid: self()}, nil
}

// Exec implements the task API.
func (t *tasks) Exec(_ context.Context, r *taskAPI.ExecProcessRequest) (*emptypb.Empty, error) {
	c, _, err := t.s.find(r.GetID(), "")
	if err != nil {
		return nil, fail(err)
	}
	if err := guest.CheckID(r.GetExecID()); err != nil {
		return nil, fail(fmt.Errorf("exec %.140q: %w: %w", r.GetExecID(), err,
			errdefs.ErrInvalidArgument))
	}
	p := newProcess(c, r.GetExecID(), r.GetStdin(), r.GetStdout(), r.GetStderr(), r.GetTerminal())
	if p.spec, err = spec.ParseProcess(r.GetSpec().GetValue()); err != nil {
		return nil, fail(err)
	}
	p.spec.Terminal = r.GetTerminal()
	if err := c.add(p); err != nil {
		return nil, fail(err)
	}
	t.s.send(runtime.TaskExecAddedEventTopic,
		&eventstypes.TaskExecAdded{ContainerID: c.id, ExecID: p.exec})
	return &emptypb.Empty{}, nil
}

// State implements the task API.
func (t *tasks) State(_ context.Context, r *taskAPI.StateRequest) (*taskAPI.StateResponse, error) {
	c, p, err := t.s.find(r.GetID(), r.GetExecID())
	if err != nil {
		return nil, fail(err)
	}
	res := &taskAPI.StateResponse{ID: r.GetID(), ExecID: r.GetExecID(), Bundle: c.bundle,
		Pid: self(), Stdin: p.stdin, Stdout: p.stdout, Stderr: p.stderr, Terminal: p.terminal}
	res.Status, res.ExitStatus, res.ExitedAt = p.state()
	return res, nil
}

// Wait implements the task API.
func (t *tasks) Wait(ctx context.Context, r *taskAPI.WaitRequest) (*taskAPI.WaitResponse, error) {
	_, p, err := t.s.find(r.GetID(), r.GetExecID())
	if err != nil {
		return nil, fail(err)
	}
	select {
	case <-p.over:
	case <-ctx.Done():
		return nil, fail(ctx.Err())
	}
	_, code, at := p.state()
	return &taskAPI.WaitResponse{ExitStatus: code, ExitedAt: at}, nil
}

// maxSignal is the number of the last signal of Linux.
const maxSignal = 64

// Kill implements the task API.
func (t *tasks) Kill(ctx context.Context, r *taskAPI.KillRequest) (*emptypb.Empty, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	_, p, err := t.s.find(r.GetID(), r.GetExecID())
	if err == nil && (r.GetSignal() == 0 || r.GetSignal() > maxSignal) {
		err = fmt.Errorf("%d is no signal: %w", r.GetSignal(), errdefs.ErrInvalidArgument)
	}
	if err != nil {
		return nil, fail(err)
	}
	return &emptypb.Empty{}, fail(p.kill(ctx, syscall.Signal(r.GetSignal())))
}

// endCreation ends the creation of a container that is under way: its caller has given up, which a
// request that runs does not learn, and nobody else would remove the container.
func (t *tasks) endCreation(ctx context.Context, id string) error {
	c := t.s.creating(id)
	if c == nil {
		return nil
	}
	select {
	case <-c.made:
		return nil
	default:
	}
	c.cancel()
	select {
	case <-c.made:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Delete implements the task API.
func (t *tasks) Delete(ctx context.Context, r *taskAPI.DeleteRequest) (
	*taskAPI.DeleteResponse, error) {
	if r.GetExecID() == "" {
		if err := t.endCreation(ctx, r.GetID()); err != nil {
			return nil, fail(err)
		}
	}
	c, p, err := t.s.find(r.GetID(), r.GetExecID())
	if err != nil {
		return nil, fail(err)
	}
	code := uint32(0) // of an exec that has not run, as with runc
	if p.exec == "" {
		code = killed
	}
	if !p.retire(code) {
		return nil, fail(fmt.Errorf("%s runs: %w", r.GetID(), errdefs.ErrFailedPrecondition))
	}
	var at *timestamppb.Timestamp
	_, code, at = p.state()
	if p.exec != "" && !c.remove(p) || p.exec == "" && !t.s.leave(c) { // another call was faster
		return nil, fail(fmt.Errorf("%.140s: %w", r.GetID(), errdefs.ErrNotFound))
	}
	if p.exec != "" {
		return &taskAPI.DeleteResponse{Pid: self(), ExitStatus: code, ExitedAt: at}, nil
	}
	c.retireAll()
	if t.s.single() {
		ctx, cancel := context.WithTimeout(ctx, t.s.killLimit())
		defer cancel()
		if err := t.s.stop(ctx); err != nil {
			log.G(ctx).WithError(err).Warn("the container's sandbox has not ended yet")
		}
	} else if _, err := t.s.running(); err == nil {
		ctx, cancel := context.WithTimeout(ctx, t.s.killLimit())
		defer cancel()
		if err := c.pod.Remove(ctx); err != nil {
			log.G(ctx).WithError(err).Warn("the container's files stay until the pod's end")
		}
	}
	t.s.forget(c)
	t.s.send(runtime.TaskDeleteEventTopic, &eventstypes.TaskDelete{ContainerID: c.id, Pid: self(),
		ExitStatus: code, ExitedAt: at})
	return &taskAPI.DeleteResponse{Pid: self(), ExitStatus: code, ExitedAt: at}, nil
}

// ResizePty implements the task API.
func (t *tasks) ResizePty(ctx context.Context, r *taskAPI.ResizePtyRequest) (
	*emptypb.Empty, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	_, p, err := t.s.find(r.GetID(), r.GetExecID())
	if err != nil {
		return nil, fail(err)
	}
	return &emptypb.Empty{}, fail(p.resize(ctx, r.GetWidth(), r.GetHeight()))
}

// CloseIO implements the task API.
func (t *tasks) CloseIO(_ context.Context, r *taskAPI.CloseIORequest) (*emptypb.Empty, error) {
	_, p, err := t.s.find(r.GetID(), r.GetExecID())
	if err != nil {
		return nil, fail(err)
	}
	if r.GetStdin() {
		p.closeStdin()
	}
	return &emptypb.Empty{}, nil
}

// Update implements the task API.
func (t *tasks) Update(ctx context.Context, r *taskAPI.UpdateTaskRequest) (*emptypb.Empty, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	c, _, err := t.s.find(r.GetID(), "")
	if err != nil {
		return nil, fail(err)
	}
	l, err := spec.ParseLimits(r.GetResources().GetValue())
	if err != nil {
		return nil, fail(err)
	}
	return &emptypb.Empty{}, fail(c.pod.Update(ctx, l))
}

// Stats implements the task API.
func (t *tasks) Stats(ctx context.Context, r *taskAPI.StatsRequest) (
	*taskAPI.StatsResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	c, _, err := t.s.find(r.GetID(), "")
	if err != nil {
		return nil, fail(err)
	}
	stats, err := c.pod.Stats(ctx)
	if err != nil {
		return nil, fail(err)
	}
	m, err := metrics(stats)
	if err != nil {
		return nil, fail(err)
	}
	return &taskAPI.StatsResponse{Stats: m}, nil
}

// Pids implements the task API.
func (t *tasks) Pids(_ context.Context, r *taskAPI.PidsRequest) (*taskAPI.PidsResponse, error) {
	if _, _, err := t.s.find(r.GetID(), ""); err != nil {
		return nil, fail(err)
	}
	return &taskAPI.PidsResponse{Processes: []*task.ProcessInfo{{Pid: self()}}}, nil
}

// Connect implements the task API.
func (t *tasks) Connect(_ context.Context, r *taskAPI.ConnectRequest) (
	*taskAPI.ConnectResponse, error) {
	return &taskAPI.ConnectResponse{ShimPid: self(), TaskPid: self()}, nil
}

// Shutdown implements the task API. The shim ends with its sandbox, not with a container of a pod.
func (t *tasks) Shutdown(context.Context, *taskAPI.ShutdownRequest) (*emptypb.Empty, error) {
	t.s.mu.Lock()
	over := (t.s.asked == nil || t.s.lone != "") && len(t.s.containers) == 0
	t.s.mu.Unlock()
	if over {
		if bundle, err := os.Getwd(); err == nil { // whoever deleted the task looks for it at once
			if address := socketOf(bundle); address != "" {
				_ = shim.RemoveSocket(address)
			}
		}
		time.AfterFunc(shutdownAfter, t.s.shutdown.Shutdown)
	}
	return &emptypb.Empty{}, nil
}

// A container is processes of its pod's sandbox, which has no snapshot of some of its processes: a
// container is neither frozen nor saved alone.
var errPause = fmt.Errorf("a container of runtime class turnstone is neither paused nor "+
	"checkpointed: %w", errdefs.ErrNotImplemented)

// Pause implements the task API. A checkpoint by containerd begins with it.
func (t *tasks) Pause(context.Context, *taskAPI.PauseRequest) (*emptypb.Empty, error) {
	return nil, fail(errPause)
}

// Resume implements the task API.
func (t *tasks) Resume(context.Context, *taskAPI.ResumeRequest) (*emptypb.Empty, error) {
	return nil, fail(errPause)
}

// Checkpoint implements the task API.
func (t *tasks) Checkpoint(context.Context, *taskAPI.CheckpointTaskRequest) (
	*emptypb.Empty, error) {
	return nil, fail(errPause)
}
