package steady

import (
	"context"
	"reflect"
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Fresh returns a client of one controller, which reads from a cache: what it has changed itself is a conflict until
// the cache has seen the change. An older object may be just what the controller would make of it now, so that it
// would write nothing, and the object would stay as it was changed in between.
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

func of(o client.Object) named { return named{reflect.TypeOf(o), client.ObjectKeyFromObject(o)} }

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
		kind := meta.AsPartialObjectMetadata(o).GroupVersionKind()
		return apierrors.NewConflict(schema.GroupResource{Group: kind.Group, Resource: kind.Kind}, key.Name, errOld{})
	}
	delete(f.old, n)
	return err
}

type errOld struct{}

func (errOld) Error() string { return "the cache has not seen the last change yet" }

// changed notes that a version was changed.
func (f *fresh) changed(o client.Object, version string, err error) error {
	if err == nil && version != "" && version != o.GetResourceVersion() {
		f.mu.Lock()
		defer f.mu.Unlock()
		n := of(o)
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
