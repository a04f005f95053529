// Package agents serves the objects of agent-sandbox (sigs.k8s.io/agent-sandbox): Sandbox, SandboxClaim
// and SandboxWarmPool, with SandboxTemplate. Each becomes calls to the control API of a server, which
// has all state that matters: a reconciler that is restarted at any point repeats nothing.
//
// Objects are written by users: their fields are untrusted input.
package agents

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	sandboxv1 "sigs.k8s.io/agent-sandbox/api/v1beta1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
)

// A Server is the control API for the tenants of a cluster: a tenant is a namespace. Create is
// idempotent: the same key never makes two sandboxes. Errors have a turnstone.Kind.
type Server interface {
	Create(ctx context.Context, namespace string, r *v1.CreateSandboxRequest) (*v1.Sandbox, error)
	// List returns the sandboxes of an object that were not removed, also those that are created. by is what
	// manages them, as Managed has it; with "/" at the end: of all objects whose path begins so.
	List(ctx context.Context, namespace, by string) ([]*v1.Sandbox, error)
	Delete(ctx context.Context, namespace, id string) error
	Pause(ctx context.Context, namespace, id string) error
	Resume(ctx context.Context, namespace, id string) error
	SetLife(ctx context.Context, namespace, id string, life time.Duration) error
	// FollowContainer starts the container of a sandbox, unless it was started before, and follows it until ctx ends
	// or the container has ended for good. tell is called with what is known, in order. The error is about a
	// sandbox of which nothing was told.
	FollowContainer(ctx context.Context, namespace, id string, m Main, tell func(Process)) error
}

// Options say what is served.
type Options struct {
	Server Server
	// Cluster tells sandboxes of this cluster from those of others at the same server.
	Cluster string
	// Default serves objects that name no runtime class, too.
	Default bool
	// Classes are runtime classes that are served beside RuntimeClass.
	Classes []string
	// Follow says how objects follow what was claimed at the server; nil: none do.
	Follow *Follow
	// Images replace the beginning of images' names, in order: the first that fits.
	Images []Image
	// Metrics count what is served; nil: nothing is counted.
	Metrics *Metrics
	Log     *slog.Logger
	// Again is the time between two looks at an object that did not change; 0: five minutes.
	Again time.Duration
	// Quiet is how long the creation of a sandbox may take before its object's status has the reason; 0: 2 seconds.
	Quiet time.Duration
	// Guest is how long a sandbox may take to answer: what runs in it may never do; 0: two minutes.
	Guest time.Duration
	// Away is how long a sandbox's node may be lost before another sandbox is made, unless the pod has a
	// toleration of unreachable nodes; 0: five minutes, as in Kubernetes.
	Away time.Duration
}

// An Image replaces names of images that begin with From by To and the rest of the name.
type Image struct{ From, To string }

// RuntimeClass is the class of objects that are served, and the value of ClassAnnotation.
const RuntimeClass = "turnstone"

// Names of ours in objects, and in the metadata of sandboxes.
const (
	// ClassAnnotation says who serves an object.
	ClassAnnotation = "turnstone.dev/class"
	// Finalizer keeps an object until its sandbox has ended.
	Finalizer = "turnstone.dev/sandbox"

	// MetadataUID, MetadataName, MetadataNamespace and MetadataCluster name the object of a sandbox, for
	// people. Every client of the tenant can write them: they are never believed.
	MetadataUID       = "kubernetes.uid"
	MetadataName      = "kubernetes.name"
	MetadataNamespace = "kubernetes.namespace"
	MetadataCluster   = "kubernetes.cluster"
	// MetadataAttempt is the number of the attempt that made the sandbox, from 0.
	MetadataAttempt = "kubernetes.attempt"
)

// TemplatePrefix begins images that are templates of the server: the name follows.
const TemplatePrefix = "turnstone.dev/template/"

// life is how long a sandbox lives that nobody ends: it is prolonged when half is over.
const life = 30 * 24 * time.Hour

// again returns the time between two looks.
func (o *Options) again() time.Duration {
	if o.Again == 0 {
		return 5 * time.Minute
	}
	return o.Again
}

// quiet returns how long a creation may take before its object's status has the reason.
func (o *Options) quiet() time.Duration {
	if o.Quiet == 0 {
		return 2 * time.Second
	}
	return o.Quiet
}

// guest returns how long a sandbox may take to answer.
func (o *Options) guest() time.Duration {
	if o.Guest == 0 {
		return 2 * time.Minute
	}
	return o.Guest
}

// away returns how long a node may be lost.
func (o *Options) away() time.Duration {
	if o.Away == 0 {
		return usualAway
	}
	return o.Away
}

// managedPrefix begins what manages the sandboxes of all clusters.
const managedPrefix = "kubernetes/"

// Managed is what manages the sandbox of an object: only a token with the scope sandboxes:manage makes a
// sandbox with it. The names are those of the namespace, of the object, and its UID. With fewer of them it
// ends with "/", and stands for all that begin so.
func Managed(cluster string, names ...string) string {
	by := managedPrefix + cluster + "/" + strings.Join(names, "/")
	if 0 < len(names) && len(names) < 3 {
		by += "/"
	}
	return by
}

// ours is what manages the sandbox of an object.
func (o *Options) ours(s *sandboxv1.Sandbox) string {
	return Managed(o.Cluster, s.Namespace, s.Name, string(s.UID))
}

// image returns the name of an image or template at the server.
func (o *Options) image(name string) string {
	for _, i := range o.Images {
		if rest, ok := strings.CutPrefix(name, i.From); ok {
			name = i.To + rest
			break
		}
	}
	return strings.TrimPrefix(name, TemplatePrefix)
}

// maxText bounds a message in a condition, in bytes: it may have a server's words.
const maxText = 1024

func clip(s string) string {
	if len(s) > maxText {
		s = s[:maxText] + "..."
	}
	return strings.ToValidUTF8(s, "?")
}

// result returns the outcome of a look at an object, which may be gone.
func result(err error) (ctrl.Result, error) {
	return ctrl.Result{}, client.IgnoreNotFound(err)
}

// key names an object.
func key(o client.Object) types.NamespacedName { return client.ObjectKeyFromObject(o) }
