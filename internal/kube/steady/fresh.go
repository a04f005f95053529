package steady

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Fresh returns a client for one controller that reads from a cache. Get returns a conflict for an object that this
// client has changed, until the cache has the change: an older version may already look as the controller wants
// it, so the controller would write nothing, and its earlier change would stay. Safe for concurrent use.
func Fresh(c client.Client) client.Client {
	return &fresh{Client: c, old: map[named][]string{}}
}

// A named names an object.
type named struct {
	kind reflect.Type
	key  client.ObjectKey
}

type fresh struct {
	client.Client

	mu  sync.Mutex
	old map[named][]string // versions that were changed, until a newer one is read
}

// mostOld bounds the versions of an object.
const mostOld = 16

// Get implements client.Reader.
func (f *fresh) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	err := f.Client.Get(ctx, key, o, opts...)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	n := named{reflect.TypeOf(o), key}
	if err == nil && slices.Contains(f.old[n], o.GetResourceVersion()) {
		return apierrors.NewConflict(schema.GroupResource{Resource: n.kind.Elem().Name()}, key.Name, errOld)
	}
	delete(f.old, n)
	return err
}

var errOld = errors.New("the cache does not have the last change yet")

// changed notes that a version was changed.
func (f *fresh) changed(o client.Object, version string, err error) error {
	if err == nil && version != "" && version != o.GetResourceVersion() {
		f.mu.Lock()
		defer f.mu.Unlock()
		n := named{reflect.TypeOf(o), client.ObjectKeyFromObject(o)}
		all := append(f.old[n], version)
		f.old[n] = all[max(len(all)-mostOld, 0):]
	}
	return err
}

// Update implements client.Writer.
func (f *fresh) Update(ctx context.Context, o client.Object, opts ...client.UpdateOption) error {
	version := o.GetResourceVersion()
	return f.changed(o, version, f.Client.Update(ctx, o, opts...))
}

// Patch implements client.Writer.
func (f *fresh) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.PatchOption) error {
	version := o.GetResourceVersion()
	return f.changed(o, version, f.Client.Patch(ctx, o, p, opts...))
}

// Status implements client.StatusClient.
func (f *fresh) Status() client.SubResourceWriter { return &freshStatus{f.Client.Status(), f} }

type freshStatus struct {
	client.SubResourceWriter
	of *fresh
}

// Update implements client.SubResourceWriter.
func (s *freshStatus) Update(ctx context.Context, o client.Object, opts ...client.SubResourceUpdateOption) error {
	version := o.GetResourceVersion()
	return s.of.changed(o, version, s.SubResourceWriter.Update(ctx, o, opts...))
}

// Patch implements client.SubResourceWriter.
func (s *freshStatus) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
	version := o.GetResourceVersion()
	return s.of.changed(o, version, s.SubResourceWriter.Patch(ctx, o, p, opts...))
}
