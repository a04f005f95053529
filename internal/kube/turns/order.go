package turns

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/kube/v1alpha1"
)

// A refusal is final: the Turn never runs.
type refusal struct{ reason, message string }

func (e *refusal) Error() string { return e.message }

// waiting is what a Turn waits for: another object, whose change wakes it, or which is looked for again.
type waiting struct {
	reason, message string
	again           time.Duration // 0: not at all
}

func (e *waiting) Error() string { return e.message }

// bySession is the index of Turns by spec.session.
const bySession = "spec.session"

// waitingIn is when an object is looked for again whose creation wakes nobody.
const waitingIn = 5 * time.Second

// again is when a Turn is looked at again that another one is before.
const again = 2 * time.Second

// before reports whether another Turn of the Session runs, or is older and has not ended. The end of
// that one wakes t.
func (r *turns) before(ctx context.Context, t *v1alpha1.Turn) (bool, error) {
	if t.Spec.Session == "" || t.Status.Ticket != "" {
		return false, nil
	}
	all := &v1alpha1.TurnList{}
	if err := r.to.List(ctx, all, client.InNamespace(t.Namespace), client.MatchingFields{bySession: t.Spec.Session},
		client.UnsafeDisableDeepCopy); err != nil {
		return false, err
	}
	for n := range all.Items {
		o := &all.Items[n]
		if o.UID == t.UID || ended(o) || o.DeletionTimestamp != nil {
			continue
		}
		if o.Status.Ticket != "" || older(o, t) {
			return true, nil
		}
	}
	return false, nil
}

// older reports whether a was created before b.
func older(a, b *v1alpha1.Turn) bool {
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}
	return a.Name < b.Name
}

// order returns what a Turn asks for.
func (r *turns) order(ctx context.Context, t *v1alpha1.Turn) (Order, error) {
	o := Order{Key: string(t.UID), Image: t.Spec.Image}
	template := t.Spec.Template
	if t.Spec.Session != "" {
		s := &v1alpha1.Session{}
		if err := r.to.Get(ctx, client.ObjectKey{Namespace: t.Namespace, Name: t.Spec.Session}, s); err != nil {
			return o, missing(err, v1alpha1.ReasonSessionNotFound, "there is no Session "+t.Spec.Session)
		}
		if !ready(s.Status.Conditions) || s.Status.ID == "" || s.DeletionTimestamp != nil {
			return o, &waiting{reason: v1alpha1.ReasonSessionNotReady, message: "Session " + t.Spec.Session + " is not ready"}
		}
		// Its ID: another session may have its name by the time the turn starts.
		o.Session, o.Branch = s.Status.ID, s.Status.Branch
		if o.Image == "" && template == "" {
			o.Image, template = s.Spec.Image, s.Spec.Template
		}
	}
	if template != "" {
		x := &v1alpha1.TurnTemplate{}
		if err := r.to.Get(ctx, client.ObjectKey{Namespace: t.Namespace, Name: template}, x); err != nil {
			return o, missing(err, v1alpha1.ReasonTemplateNotFound, "there is no TurnTemplate "+template)
		}
		if !ready(x.Status.Conditions) {
			return o, &waiting{reason: v1alpha1.ReasonTemplateNotReady, message: "TurnTemplate " + template + " is not ready"}
		}
		o.Image = x.Spec.Image
	}
	o.Document = func(ctx context.Context) ([]byte, error) { return r.document(ctx, t) }
	return o, sizes(&o, &t.Spec)
}

// missing returns that a Turn waits for an object, if it is not there.
func missing(err error, reason, message string) error {
	if apierrors.IsNotFound(err) {
		return &waiting{reason: reason, message: message}
	}
	return err
}

// sizes reads the bounds of a Turn, which the schema has checked.
func sizes(o *Order, s *v1alpha1.TurnSpec) (err error) {
	bad := func(field string, err error) error {
		return &refusal{v1alpha1.ReasonRefused, field + ": " + clip(err.Error())}
	}
	if s.Timeout != "" {
		if o.Timeout, err = time.ParseDuration(s.Timeout); err != nil {
			return bad("spec.timeout", err)
		}
	}
	m := s.Machine
	if m == nil {
		return nil
	}
	o.CPUs = int(m.CPUs)
	if m.Memory != "" {
		if o.Memory, err = turnstone.ParseBytes(m.Memory); err != nil {
			return bad("spec.machine.memory", err)
		}
	}
	if m.Disk != "" {
		if o.Disk, err = turnstone.ParseBytes(m.Disk); err != nil {
			return bad("spec.machine.disk", err)
		}
	}
	return nil
}

// place returns where a fault of a document is, and not what it is: the document's words stay out of
// objects.
func place(e document.SyntaxError) string { return fmt.Sprintf("%d:%d", e.Line, e.Column) }

// outcome returns a Turn's end.
func outcome(x run) (phase v1alpha1.Phase, reason, message string) {
	if x.report == nil {
		return v1alpha1.PhaseFailed, v1alpha1.ReasonLost, text(x.err)
	}
	switch x.report.Result {
	case turnstone.ResultPassed:
		return v1alpha1.PhasePassed, v1alpha1.ReasonPassed, ""
	case turnstone.ResultFailed:
		return v1alpha1.PhaseFailed, v1alpha1.ReasonStep, ""
	case turnstone.ResultTimedOut:
		return v1alpha1.PhaseFailed, v1alpha1.ReasonTimedOut, ""
	}
	if x.report.Kind == turnstone.KindCanceled {
		return v1alpha1.PhaseFailed, v1alpha1.ReasonCanceled, clip(x.report.Error)
	}
	return v1alpha1.PhaseFailed, v1alpha1.ReasonError, clip(x.report.Error)
}

// Exit statuses of turn run.
const (
	exitPassed  = 0
	exitFailed  = 1
	exitAborted = 3
)

// describe copies the digests and numbers of a report: nothing that the document or the guest wrote.
func describe(s *v1alpha1.TurnStatus, p *turnstone.TurnReport) {
	s.Finished = now()
	if p == nil {
		return
	}
	short := func(text string, most int) string {
		if len(text) > most {
			return ""
		}
		return text
	}
	s.Turn, s.Session, s.Number = short(string(p.ID), 64), short(p.Session, 64), int64(p.Number)
	s.Branch, s.Image = short(p.Branch, 100), short(p.Image, 255)
	s.Template, s.State, s.Record = sum(p.Template), sum(p.FSHash), sum(p.Record)
	if p.Receipt != "" {
		s.Receipt = digest([]byte(p.Receipt))
	}
	n := &v1alpha1.Steps{Total: int32(len(p.Steps))}
	for _, step := range p.Steps {
		switch step.Status {
		case turnstone.StepPassed:
			n.Passed++
		case turnstone.StepFailed, turnstone.StepTimeout, turnstone.StepError:
			n.Failed++
		}
	}
	n.Summary = strconv.Itoa(int(n.Passed)) + "/" + strconv.Itoa(int(n.Total))
	s.Steps = n
	exit := int32(exitAborted)
	switch p.Result {
	case turnstone.ResultPassed:
		exit = exitPassed
	case turnstone.ResultFailed, turnstone.ResultTimedOut:
		exit = exitFailed
	}
	s.ExitCode = &exit
	if !p.Started.IsZero() {
		started := metav1.NewTime(p.Started)
		finished := metav1.NewTime(p.Started.Add(p.Duration))
		s.Started, s.Finished = &started, &finished
		s.Duration = p.Duration.Round(time.Millisecond).String()
	}
}

// sum returns a digest of a server, or nothing if it is none.
func sum(d turnstone.Digest) string {
	if !isSum.MatchString(string(d)) {
		return ""
	}
	return string(d)
}

var isSum = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

func now() *metav1.Time {
	t := metav1.Now()
	return &t
}

// same reports whether two statuses have nothing to write.
func same(a, b any) bool { return equality.Semantic.DeepEqual(a, b) }
