package agents

import (
	"context"
	"reflect"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	sandboxv1 "sigs.k8s.io/agent-sandbox/api/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/kube/steady"
)

// maxFollowed bounds the sandboxes whose containers are followed at one time: each has a channel. A
// namespace has at most half of what the others leave. The containers of others are looked at.
const maxFollowed = 2000

// followers follow the containers of sandboxes. A change asks for a look at the object.
type followers struct {
	o      *Options
	most   int
	events chan event.GenericEvent
	ctx    context.Context
	cancel context.CancelFunc

	mu    sync.Mutex
	all   map[types.NamespacedName]*followed
	taken int            // of all that have not ended for good
	of    map[string]int // of a namespace
}

// A followed container. state is what was told last.
type followed struct {
	box    string
	main   Main
	began  time.Time
	cancel context.CancelFunc

	over  bool          // nothing more is told
	told  chan struct{} // closed when there is a state or an error
	has   bool
	state Process
	err   error
}

func newFollowers(o *Options) *followers {
	f := &followers{o: o, most: maxFollowed, events: make(chan event.GenericEvent, 64),
		all: map[types.NamespacedName]*followed{}, of: map[string]int{}}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	return f
}

// Start implements manager.Runnable: it ends all at the manager's end. The containers go on.
func (f *followers) Start(ctx context.Context) error {
	<-ctx.Done()
	f.cancel()
	return nil
}

// state returns what is known of an object's container, which is followed from now on. It waits for what is
// told first, but not for what runs in a sandbox that never answers.
func (f *followers) state(ctx context.Context, s *sandboxv1.Sandbox, box string, m Main) (Process, error) {
	one, fits := f.get(s, box, m, 0)
	if !fits {
		return f.glance(ctx, s.Namespace, box, m)
	}
	left := time.NewTimer(time.Until(one.began.Add(f.o.guest())))
	defer left.Stop()
	select {
	case <-one.told:
	case <-left.C:
		return Process{}, silent(box)
	case <-ctx.Done():
		return Process{}, context.Cause(ctx)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return one.state, one.err
}

// idleAge is the age of a sandbox without a process whose end is watched: a short claim costs no channel.
const idleAge = 10 * time.Second

// watch follows a container that has nothing to do, for the end of its sandbox.
func (f *followers) watch(s *sandboxv1.Sandbox, box string, m Main) { f.get(s, box, m, idleAge) }

// stopped ends an object's container, and reports whether it has ended, or there is no place to do it. A look at the
// object is asked for at its end.
func (f *followers) stopped(s *sandboxv1.Sandbox, box string, m Main) bool {
	one, fits := f.get(s, box, m, 0)
	f.mu.Lock()
	defer f.mu.Unlock()
	return !fits || one.over
}

func silent(box string) error {
	return turnstone.Errorf("kube.follow", turnstone.KindUnavailable, "sandbox "+box, "does not answer")
}

// get returns the follower of an object's container. A container that another object, or another
// description, asked for is no longer followed.
func (f *followers) get(s *sandboxv1.Sandbox, box string, m Main, after time.Duration) (*followed, bool) {
	k := key(s)
	f.mu.Lock()
	defer f.mu.Unlock()
	if one := f.all[k]; one != nil {
		if one.box == box && alike(one.main, m) {
			return one, true
		}
		f.remove(k)
	}
	if !steady.Fits(f.of[k.Namespace], f.taken, f.most) {
		return nil, false
	}
	ctx, cancel := context.WithCancel(f.ctx)
	one := &followed{box: box, main: m, began: time.Now(), cancel: cancel, told: make(chan struct{})}
	f.all[k] = one
	f.of[k.Namespace]++
	f.taken++
	go f.follow(ctx, k, one, after)
	return one, true
}

// alike compares what is comparable.
func alike(a, b Main) bool {
	a.Inputs, b.Inputs, a.Was, b.Was = nil, nil, Was{}, Was{}
	return reflect.DeepEqual(a, b)
}

// follow follows a container until ctx ends. One of which nothing can be told is followed again when its
// object is looked at.
func (f *followers) follow(ctx context.Context, k types.NamespacedName, one *followed, after time.Duration) {
	defer one.cancel()
	if after > 0 {
		select {
		case <-time.After(after):
		case <-ctx.Done():
			return
		}
	}
	err := f.o.Server.FollowContainer(ctx, k.Namespace, one.box, one.main, func(p Process) { f.tell(ctx, k, one, p) })
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.all[k] != one {
		return // removed
	}
	f.leave(k, one)
	if one.main.Stop {
		go f.look(f.ctx, k) // its own context ends now
		return
	}
	if !one.has {
		one.err, one.has = err, true
		close(one.told)
		delete(f.all, k)
	}
}

// leave frees the place of a container. The caller holds mu.
func (f *followers) leave(k types.NamespacedName, one *followed) {
	if one.over {
		return
	}
	one.over = true
	f.taken--
	if f.of[k.Namespace]--; f.of[k.Namespace] == 0 {
		delete(f.of, k.Namespace)
	}
}

// tell notes what is known, and asks for a look at the object if that has changed.
func (f *followers) tell(ctx context.Context, k types.NamespacedName, one *followed, p Process) {
	f.mu.Lock()
	changed := one.has && one.state != p
	if one.state = p; !one.has {
		one.has = true
		close(one.told)
		// Its look may not have waited so long.
		changed = time.Since(one.began) > f.o.guest()
	}
	f.mu.Unlock()
	if changed {
		f.look(ctx, k)
	}
}

// look asks for a look at an object.
func (f *followers) look(ctx context.Context, k types.NamespacedName) {
	select {
	case f.events <- event.GenericEvent{Object: &sandboxv1.Sandbox{ObjectMeta: metav1.ObjectMeta{
		Namespace: k.Namespace, Name: k.Name}}}:
	case <-ctx.Done():
	}
}

// end stops to follow an object's container.
func (f *followers) end(k types.NamespacedName) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.remove(k)
}

// remove is end for a caller that holds mu.
func (f *followers) remove(k types.NamespacedName) {
	one := f.all[k]
	if one == nil {
		return
	}
	one.cancel()
	delete(f.all, k)
	f.leave(k, one)
}

// glance follows a container until something is told.
func (f *followers) glance(ctx context.Context, namespace, box string, m Main) (p Process, err error) {
	ctx, cancel := context.WithTimeout(ctx, f.o.guest())
	defer cancel()
	var has bool
	err = f.o.Server.FollowContainer(ctx, namespace, box, m, func(told Process) {
		if !has {
			has, p = true, told
			cancel()
		}
	})
	switch {
	case has:
		return p, nil
	case err == nil || ctx.Err() != nil:
		return p, silent(box)
	}
	return p, err
}
