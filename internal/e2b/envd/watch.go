package envd

import (
	"context"
	"crypto/rand"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/e2b/envdapi/filesystem"
	"turnstone.dev/turnstone/wire"
)

// Bounds of watches.
const (
	maxWatchers = 1000 // that clients ask; tenants share them
	maxPerBox   = 16
	maxPending  = 4096 // events that wait
	watcherIdle = time.Hour
)

var kinds = map[wire.FileSystemChangeKind]filesystem.EventType{
	wire.FileSystemChangeKindCreated:    filesystem.EventType_EVENT_TYPE_CREATE,
	wire.FileSystemChangeKindModified:   filesystem.EventType_EVENT_TYPE_WRITE,
	wire.FileSystemChangeKindRemoved:    filesystem.EventType_EVENT_TYPE_REMOVE,
	wire.FileSystemChangeKindAttributes: filesystem.EventType_EVENT_TYPE_CHMOD,
}

// A change is a change of a file below a watched directory.
type change struct {
	path string
	kind filesystem.EventType
}

// A watch is a watched directory of a sandbox. What nobody takes is dropped beyond a bound, the
// oldest first.
type watch struct {
	box   turnstone.SandboxID
	whose string // its tenant
	root  string
	entry bool // events have the entry
	place *place

	mu    sync.Mutex
	queue []change
	more  chan struct{} // has room for one: something waits
	used  time.Time
}

// event takes the changes of the watch's connection, which has one watch.
func (w *watch) event(e wire.Event) {
	if e.Method != wire.EventFileSystemChanged {
		return
	}
	v, err := wire.DecodeEvent(e)
	changed, ok := v.(*wire.FileSystemChangedEvent)
	if err != nil || !ok {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range changed.Changes {
		w.queue = append(w.queue, change{c.Path, kinds[c.Kind]})
	}
	if extra := len(w.queue) - maxPending; extra > 0 {
		w.queue = w.queue[extra:]
	}
	select {
	case w.more <- struct{}{}:
	default:
	}
}

// take returns the changes that wait.
func (w *watch) take() []change {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := w.queue
	w.queue, w.used = nil, time.Now()
	return all
}

// events returns changes for a caller.
func (w *watch) events(ctx context.Context, all []change) (out []*filesystem.FilesystemEvent) {
	p := &place{w.place.c, w.place.v, w.place.owner, &names{c: w.place.c}} // names are for one caller
	for _, c := range all {
		name := strings.TrimPrefix(strings.TrimPrefix(c.path, w.root), "/")
		e := &filesystem.FilesystemEvent{Name: strings.ToValidUTF8(name, "\uFFFD"), Type: c.kind}
		if w.entry && c.kind != filesystem.EventType_EVENT_TYPE_REMOVE {
			if entry, err := p.entry(ctx, c.path); err == nil {
				e.Entry = entry
			}
		}
		out = append(out, e)
	}
	return out
}

// watchRequest is what both ways to watch ask for.
type watchRequest interface {
	GetPath() string
	GetRecursive() bool
	GetIncludeEntry() bool
}

// begin begins a watch of the sandbox of ctx. The caller closes its connection.
func begin(ctx context.Context, user string, q watchRequest) (*watch, error) {
	b, err := box(ctx)
	if err != nil {
		return nil, err
	}
	w := &watch{box: b.ID, whose: b.Tenant, entry: q.GetIncludeEntry(), more: make(chan struct{}, 1), used: time.Now()}
	if w.place, err = at(ctx, user, wire.Options{OnEvent: w.event}); err != nil {
		return nil, err
	}
	if err = w.start(ctx, q); err != nil {
		_ = w.place.c.Close()
		return nil, err
	}
	return w, nil
}

func (w *watch) start(ctx context.Context, q watchRequest) (err error) {
	if w.root, err = w.place.v.resolve(q.GetPath()); err != nil {
		return err
	}
	i, err := w.place.c.FileSystemStat(ctx, &wire.FileSystemStatParams{Path: w.root})
	if err != nil {
		return missing(err, w.root)
	}
	if i.File.Type != wire.FileSystemFileInfoTypeDirectory {
		return fail(connect.CodeInvalidArgument, "path is not a directory: "+w.root)
	}
	_, err = w.place.c.FileSystemWatch(ctx, &wire.FileSystemWatchParams{Path: w.root,
		Recursive: q.GetRecursive()})
	return err
}

// WatchDir sends the changes of a directory until its caller leaves.
func (f files) WatchDir(ctx context.Context, r *connect.Request[filesystem.WatchDirRequest],
	s *connect.ServerStream[filesystem.WatchDirResponse]) error {
	user, err := userOf(r.Header())
	if err != nil {
		return err
	}
	w, err := begin(ctx, user, r.Msg)
	if err != nil {
		return err
	}
	c := w.place.c
	defer func() { _ = c.Close() }()
	if err := s.Send(&filesystem.WatchDirResponse{Event: &filesystem.WatchDirResponse_Start{
		Start: &filesystem.WatchDirResponse_StartEvent{}}}); err != nil {
		return err
	}
	alive := time.NewTicker(interval(r.Header()))
	defer alive.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.Done():
			return turnstone.Errorf("e2b.watch", turnstone.KindDead, "the connection to the sandbox",
				"ended before the watch")
		case <-alive.C:
			err = s.Send(&filesystem.WatchDirResponse{Event: &filesystem.WatchDirResponse_Keepalive{
				Keepalive: &filesystem.WatchDirResponse_KeepAlive{}}})
		case <-w.more:
			for _, e := range w.events(ctx, w.take()) {
				if err = s.Send(&filesystem.WatchDirResponse{
					Event: &filesystem.WatchDirResponse_Filesystem{Filesystem: e}}); err != nil {
					break
				}
			}
		}
		if err != nil {
			return err
		}
	}
}

// watchers are the watches whose changes clients ask for.
type watchers struct {
	mu  sync.Mutex
	all map[string]*watch
	per map[turnstone.SandboxID]int

	shares shares
}

func newWatchers() *watchers {
	return &watchers{all: map[string]*watch{}, per: map[turnstone.SandboxID]int{},
		shares: shares{most: maxWatchers}}
}

// add keeps a watch under a new name, and closes those that nobody asks.
func (s *watchers) add(w *watch) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, old := range s.all {
		old.mu.Lock()
		idle := time.Since(old.used) > watcherIdle
		old.mu.Unlock()
		if idle || isClosed(old.place.c.Done()) {
			s.drop(id)
		}
	}
	if s.per[w.box] >= maxPerBox || !s.shares.take(w.whose) {
		return "", fail(connect.CodeResourceExhausted, "there are too many watchers: remove some")
	}
	id := strings.ToLower(rand.Text())
	s.all[id] = w
	s.per[w.box]++
	return id, nil
}

// drop closes a watch. The caller holds mu.
func (s *watchers) drop(id string) {
	w := s.all[id]
	delete(s.all, id)
	if s.per[w.box]--; s.per[w.box] == 0 {
		delete(s.per, w.box)
	}
	s.shares.leave(w.whose)
	_ = w.place.c.Close()
}

// find returns a watch of a sandbox.
func (s *watchers) find(ctx context.Context, id string) (*watch, error) {
	b, err := box(ctx)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	w, ok := s.all[id]
	if !ok || w.box != b.ID {
		return nil, fail(connect.CodeNotFound, "there is no such watcher")
	}
	return w, nil
}

func (s *watchers) remove(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[id] != nil {
		s.drop(id)
	}
}

func (s *watchers) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.all {
		s.drop(id)
	}
}

// CreateWatcher begins a watch, whose changes GetWatcherEvents answers.
func (f files) CreateWatcher(ctx context.Context,
	r *connect.Request[filesystem.CreateWatcherRequest]) (
	*connect.Response[filesystem.CreateWatcherResponse], error) {
	user, err := userOf(r.Header())
	if err != nil {
		return nil, err
	}
	w, err := begin(ctx, user, r.Msg)
	if err != nil {
		return nil, err
	}
	id, err := f.s.watchers.add(w)
	if err != nil {
		_ = w.place.c.Close()
		return nil, err
	}
	return connect.NewResponse(&filesystem.CreateWatcherResponse{WatcherId: id}), nil
}

// GetWatcherEvents answers the changes since the last call.
func (f files) GetWatcherEvents(ctx context.Context,
	r *connect.Request[filesystem.GetWatcherEventsRequest]) (
	*connect.Response[filesystem.GetWatcherEventsResponse], error) {
	w, err := f.s.watchers.find(ctx, r.Msg.WatcherId)
	if err != nil {
		return nil, err
	}
	all := w.take()
	if len(all) == 0 && isClosed(w.place.c.Done()) {
		f.s.watchers.remove(r.Msg.WatcherId)
		return nil, fail(connect.CodeNotFound, "the watcher has ended: the sandbox was paused or forked")
	}
	return connect.NewResponse(&filesystem.GetWatcherEventsResponse{Events: w.events(ctx, all)}), nil
}

// RemoveWatcher ends a watch.
func (f files) RemoveWatcher(ctx context.Context,
	r *connect.Request[filesystem.RemoveWatcherRequest]) (
	*connect.Response[filesystem.RemoveWatcherResponse], error) {
	if _, err := f.s.watchers.find(ctx, r.Msg.WatcherId); err != nil {
		return nil, err
	}
	f.s.watchers.remove(r.Msg.WatcherId)
	return connect.NewResponse(&filesystem.RemoveWatcherResponse{}), nil
}
