// Package reviews asks the API server of a cluster who a caller is, by its token, and whether it may use a
// sandbox: whoever may get it, and create sandboxes or claims in its namespace. The answers are kept
// shortly, under digests of the tokens.
package reviews

import (
	"context"
	"crypto/sha256"
	"slices"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	sandboxv1 "sigs.k8s.io/agent-sandbox/api/v1beta1"
	extv1 "sigs.k8s.io/agent-sandbox/extensions/api/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/kube/router"
)

const (
	// keptFor is how long an answer counts: a right that is taken away ends within this time.
	keptFor = 10 * time.Second
	// maxKept bounds the answers.
	maxKept = 10_000
	// maxAsked bounds the questions at one time: whoever reaches the router can ask with invented tokens.
	maxAsked = 16
	// askTime bounds a question.
	askTime = 10 * time.Second
)

// A Reviewer implements router.Reviewer. It is safe for concurrent use.
type Reviewer struct {
	to        client.Writer
	audiences []string
	asked     chan struct{}

	mu    sync.Mutex
	users map[[sha256.Size]byte]answer
	may   map[question]answer
	now   func() time.Time
}

// A question is about the user of a token, and a sandbox.
type question struct {
	token           [sha256.Size]byte
	namespace, name string
}

// An answer is a user, or why there is none.
type answer struct {
	user authenticationv1.UserInfo
	err  error
	at   time.Time
}

// New returns a reviewer that asks by a client. The tokens are for one of the audiences; none: for the API
// server's own.
func New(to client.Writer, audiences ...string) *Reviewer {
	return &Reviewer{to: to, audiences: audiences, asked: make(chan struct{}, maxAsked),
		users: map[[sha256.Size]byte]answer{}, may: map[question]answer{}, now: time.Now}
}

// Review implements router.Reviewer.
func (r *Reviewer) Review(ctx context.Context, token, namespace, name string) error {
	q := question{sha256.Sum256([]byte(token)), namespace, name}
	if a, ok := kept(r, r.may, q); ok {
		return a.err
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	select {
	case r.asked <- struct{}{}:
		defer func() { <-r.asked }()
	case <-ctx.Done():
		return ctx.Err()
	}
	a, ok := kept(r, r.users, q.token)
	if !ok {
		var err error
		if a, err = r.user(ctx, token); err != nil {
			return err
		}
		keep(r, r.users, q.token, a)
	}
	if a.err != nil {
		return a.err
	}
	err := r.allowed(ctx, a.user, namespace, name)
	if err == nil || turnstone.KindOf(err) == turnstone.KindDenied {
		keep(r, r.may, q, answer{err: err})
	}
	return err
}

// kept returns an answer that still counts.
func kept[K comparable](r *Reviewer, of map[K]answer, k K) (answer, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a, ok := of[k]
	return a, ok && r.now().Sub(a.at) < keptFor
}

func keep[K comparable](r *Reviewer, of map[K]answer, k K, a answer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(of) >= maxKept {
		clear(of)
	}
	a.at = r.now()
	of[k] = a
}

// user asks who has a token. The answer has an error if nobody does; err is that of the question.
func (r *Reviewer) user(ctx context.Context, token string) (answer, error) {
	t := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: r.audiences}}
	if err := r.to.Create(ctx, t); err != nil {
		return answer{}, away(ctx, err)
	}
	// An authenticator that knows no audiences answers none.
	fits := len(r.audiences) == 0 || slices.ContainsFunc(t.Status.Audiences, func(a string) bool {
		return slices.Contains(r.audiences, a)
	})
	if !t.Status.Authenticated || !fits || t.Status.User.Username == "" {
		return answer{err: router.ErrUnknown}, nil
	}
	return answer{user: t.Status.User}, nil
}

// allowed asks whether a user may use a sandbox.
func (r *Reviewer) allowed(ctx context.Context, u authenticationv1.UserInfo, namespace, name string) error {
	may := func(verb, group, resource, name string) (bool, error) {
		extra := map[string]authorizationv1.ExtraValue{}
		for k, v := range u.Extra {
			extra[k] = authorizationv1.ExtraValue(v)
		}
		s := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: u.Username,
			Groups: u.Groups, UID: u.UID, Extra: extra, ResourceAttributes: &authorizationv1.ResourceAttributes{
				Namespace: namespace, Verb: verb, Group: group, Resource: resource, Name: name}}}
		if err := r.to.Create(ctx, s); err != nil {
			return false, away(ctx, err)
		}
		return s.Status.Allowed && !s.Status.Denied, nil
	}
	ok, err := may("get", sandboxv1.GroupVersion.Group, "sandboxes", name)
	if ok && err == nil {
		ok, err = may("create", sandboxv1.GroupVersion.Group, "sandboxes", "")
		if !ok && err == nil {
			ok, err = may("create", extv1.GroupVersion.Group, "sandboxclaims", "")
		}
	}
	if err == nil && !ok {
		err = turnstone.Errorf("router.review", turnstone.KindDenied, "the caller", "may not use the sandbox")
	}
	return err
}

// away is the error of a question that has no answer. The text of the API server is left out: it may quote
// the question, which has a token.
func away(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return turnstone.Errorf("router.review", turnstone.KindUnavailable, "the API server", "answers %q",
		apierrors.ReasonForError(err)).
		WithHint("the operator needs the verb create of tokenreviews and subjectaccessreviews")
}
