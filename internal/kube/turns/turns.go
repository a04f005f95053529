// Package turns serves the project's own objects of Kubernetes: Turn, Session and TurnTemplate. Each
// becomes calls to a server, which has all state that matters. A Turn's document is read by the
// operator with its own key, when the turn starts, and is in no object.
//
// Objects are written by users: their fields are untrusted input, and so are their statuses, which a
// user may have forged. A status can change what is said of a Turn, never what another namespace has.
package turns

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/kube/v1alpha1"
)

// A Server runs turns for the tenants of a cluster: a tenant is a namespace. Errors have a
// turnstone.Kind.
type Server interface {
	// Document reads a document from a session that the operator's key may read.
	Document(ctx context.Context, namespace string, from v1alpha1.DocumentSource) ([]byte, error)
	// Reserve returns the ticket of a turn. The same key returns the same ticket, unless that one has
	// expired: its turn never began, and never will.
	Reserve(ctx context.Context, namespace string, o Order) (ticket string, err error)
	// Follow returns the report of a ticket's turn when the turn has ended. It starts the turn unless the
	// ticket was used. The error is a NotStarted if nothing ran. When ctx ends, the turn continues.
	Follow(ctx context.Context, namespace, ticket string, o Order) (*turnstone.TurnReport, error)
	// Cancel ends the turn of a ticket, if it runs.
	Cancel(ctx context.Context, namespace, ticket string) error

	// Make makes a session, or returns the one of this name that it made before. The error is of kind Denied
	// if somebody else made one, and NotFound if the one that it made was removed.
	Make(ctx context.Context, namespace, name, key string) (id string, err error)
	// Fork makes a branch at a turn, unless the session has it, and returns the session.
	Fork(ctx context.Context, namespace string, from v1alpha1.TurnRef, branch string) (id, name string, err error)
	// Head returns the newest turn of a branch of a session, by its ID, nil if there is none, and the number
	// of its turns.
	Head(ctx context.Context, namespace, session, branch string) (*v1alpha1.Head, int64, error)
	// Remove removes a session, or only a branch of it. It does nothing if there is none.
	Remove(ctx context.Context, namespace, session, branch string) error
	// Build builds a template, or returns the one that is there.
	Build(ctx context.Context, namespace, image string) (turnstone.Digest, error)
}

// An Order is what a turn is started with.
type Order struct {
	Key             string // of idempotency: the object's UID
	Session, Branch string // the session's ID
	Image           string
	Timeout         time.Duration
	CPUs            int
	Memory, Disk    turnstone.Bytes
	// Document returns the document. Follow calls it only for a turn that did not start yet.
	Document func(ctx context.Context) ([]byte, error)
}

// NotStarted is the error of a turn that did not start. If its kind says that a later try may help, the
// turn may have started before, and its ticket says so at that try.
type NotStarted struct{ Err error }

func (e *NotStarted) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *NotStarted) Unwrap() error { return e.Err }

// ErrExpired is the cause of a NotStarted whose ticket is void. Reserve returns another.
var ErrExpired = errors.New("the ticket has expired")

// Options say what is served.
type Options struct {
	Server Server
	Log    *slog.Logger
	// Settle is how long changes of a session's head are collected before its object is written; 0: 30
	// seconds.
	Settle time.Duration
	// Grace is how long a Turn waits for its Session and TurnTemplate before its status says so; 0:
	// five seconds.
	Grace time.Duration
	// Most bounds the turns that are followed at a time; 0: 1,000. A namespace has at most half of what
	// the others leave.
	Most int
	// Held bounds the bytes of their documents in the same way: a document is in memory as long as its
	// turn runs; 0: 64 MiB.
	Held int
}

const (
	settleTime = 30 * time.Second
	graceTime  = 5 * time.Second
	mostRuns   = 1000
	mostHeld   = 64 << 20
	// againIn is the time between two tries of what the server cannot do now.
	againIn = 10 * time.Second
)

func or[T comparable](v, other T) T {
	var zero T
	if v == zero {
		return other
	}
	return v
}

// Finalizer keeps a Session until its turns are removed, if its policy says so.
const Finalizer = "turnstone.dev/session"

// maxText bounds a message in a condition, in bytes: it may have a server's words.
const maxText = 512

// text returns an error for a condition.
func text(err error) string {
	s := err.Error()
	if hint := turnstone.HintOf(err); hint != "" {
		s += " (" + hint + ")"
	}
	return clip(s)
}

func clip(s string) string {
	if len(s) > maxText {
		s = s[:maxText] + "..."
	}
	return strings.ToValidUTF8(s, "?")
}

// set sets a condition of an object.
func set(all *[]metav1.Condition, o client.Object, kind string, is bool, reason, message string) {
	status := metav1.ConditionFalse
	if is {
		status = metav1.ConditionTrue
	}
	meta.SetStatusCondition(all, metav1.Condition{Type: kind, Status: status, Reason: reason,
		Message: clip(message), ObservedGeneration: o.GetGeneration()})
}

// result returns the outcome of a look at an object, which may be gone.
func result(err error) (ctrl.Result, error) {
	return ctrl.Result{}, client.IgnoreNotFound(err)
}

// passing reports whether a later try may succeed, without a change of the object.
func passing(err error) bool {
	switch turnstone.KindOf(err) {
	case turnstone.KindInvalid, turnstone.KindNotFound, turnstone.KindDenied, turnstone.KindIntegrity:
		return false
	}
	return !errors.Is(err, turnstone.ErrLocked)
}

// ready reports the condition Ready of these.
func ready(all []metav1.Condition) bool { return meta.IsStatusConditionTrue(all, v1alpha1.Ready) }
