package agents

import (
	"context"
	"strconv"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	sandboxv1 "sigs.k8s.io/agent-sandbox/api/v1beta1"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
)

// maxAttempts bounds the attempts whose failures one look at an object finds: the next look continues.
const maxAttempts = 64

// attempts counts the creations of objects that failed for good. The server knows them too, by their
// idempotency keys, so a new operator finds them again. The zero value has none.
type attempts struct {
	mu  sync.Mutex
	all map[types.UID]int
}

// failed returns how many are known to have failed.
func (a *attempts) failed(uid types.UID) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.all[uid]
}

func (a *attempts) set(uid types.UID, n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.all == nil {
		a.all = map[types.UID]int{}
	}
	if a.all[uid] = n; n == 0 {
		delete(a.all, uid)
	}
}

// attempt returns the request of an object's attempt to create its sandbox.
func attempt(want *v1.CreateSandboxRequest, n int) *v1.CreateSandboxRequest {
	r := proto.CloneOf(want)
	r.Metadata[MetadataAttempt] = strconv.Itoa(n)
	if n > 0 {
		r.IdempotencyKey += "." + strconv.Itoa(n)
	}
	return r
}

// ask makes the call that creates a sandbox. If the answer takes long, the object's status has the reason meanwhile.
func (r *sandboxes) ask(ctx context.Context, s *sandboxv1.Sandbox, request *v1.CreateSandboxRequest) (box *v1.Sandbox, err error) {
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		box, err = r.o.Server.Create(ctx, s.Namespace, request)
	}()
	late := time.NewTimer(r.o.quiet())
	defer late.Stop()
	select {
	case <-answered:
		return box, err
	case <-late.C:
		r.underWay(ctx, s)
	}
	<-answered
	return box, err
}

// underWay writes the status of an object whose sandbox takes long.
func (r *sandboxes) underWay(ctx context.Context, s *sandboxv1.Sandbox) {
	was := s.Status.DeepCopy()
	const why = "its sandbox is being created: the first one of a template or an image waits until that is built or pulled"
	r.notReady(s, why)
	if same(was, &s.Status) {
		return
	}
	if err := r.to.Status().Update(ctx, s); err != nil { // the answer comes with another status
		s.Status = *was
		return
	}
	r.tell.Eventf(s, nil, corev1.EventTypeNormal, ReasonCreating, "Create", "%s", why)
}

// create creates the sandbox of an object that has none. Each attempt has a key of its own: with that of
// one that failed, such as because the registry was away, the server makes nothing.
func (r *sandboxes) create(ctx context.Context, s *sandboxv1.Sandbox, want *v1.CreateSandboxRequest) (
	box *v1.Sandbox, err error) {
	n := r.attempts.failed(s.UID)
	for range maxAttempts {
		if box, err = r.ask(ctx, s, attempt(want, n)); !api.IsKeySpent(err) {
			return box, later(s, err)
		}
		n++
		r.attempts.set(s.UID, n)
	}
	return nil, err
}

// first creates the sandbox of an object that is looked at for the first time, without a question whether there is one:
// if an earlier operator has made it, the same call returns it. It returns nil if the object has to be looked at
// in whole.
func (r *sandboxes) first(ctx context.Context, s *sandboxv1.Sandbox, want *v1.CreateSandboxRequest) (*v1.Sandbox, error) {
	if len(s.Status.Conditions) > 0 || s.Spec.OperatingMode == sandboxv1.SandboxOperatingModeSuspended ||
		r.attempts.failed(s.UID) > 0 {
		return nil, nil
	}
	box, err := r.ask(ctx, s, attempt(want, 0))
	switch {
	case api.IsKeySpent(err):
		return nil, nil
	case err != nil:
		return nil, later(s, err)
	case box.State != v1.SandboxState_SANDBOX_STATE_READY && box.State != v1.SandboxState_SANDBOX_STATE_RUNNING, box.Removed:
		return nil, nil
	}
	return box, nil
}

// recreate repeats the call for a sandbox that is being created. It waits for that call, if one waits for
// the node, and otherwise asks the node again: an earlier operator, or a connection, may have ended.
func (r *sandboxes) recreate(ctx context.Context, s *sandboxv1.Sandbox, box *v1.Sandbox,
	want *v1.CreateSandboxRequest) (*v1.Sandbox, error) {
	n, err := strconv.Atoi(box.Metadata[MetadataAttempt])
	if err != nil || n < 0 {
		return box, nil
	}
	made, err := r.ask(ctx, s, attempt(want, n))
	if api.IsKeySpent(err) { // it has failed meanwhile, or the object was changed
		return box, nil
	}
	return made, later(s, err)
}

// A delayed is an error after which the object is looked at again in a certain time.
type delayed struct {
	error
	after time.Duration
}

func (d delayed) Unwrap() error { return d.error }

// Bounds of the time between two attempts.
const (
	minDelay = 10 * time.Second
	maxDelay = 5 * time.Minute
)

// later delays the next attempt after an error that needs somebody's help, such as an image that its
// registry does not have: the older the object, the longer. Others are tried again sooner.
func later(s *sandboxv1.Sandbox, err error) error {
	switch kind := turnstone.KindOf(err); {
	case err == nil, api.Retryable(err), kind == turnstone.KindExhausted, kind == turnstone.KindInvalid,
		kind == turnstone.KindDenied, kind == turnstone.KindCanceled, kind == "":
		return err
	}
	return delayed{err, min(max(time.Since(s.CreationTimestamp.Time)/2, minDelay), maxDelay)}
}
