package turns_test

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"turnstone.dev/turnstone/internal/kube/v1alpha1"
	"turnstone.dev/turnstone/internal/testsize"
)

// TestTurns uses one API server for all that needs no sandboxes.
func TestTurns(t *testing.T) {
	w := newWorld(t)
	w.part("schema", w.schema)
	w.part("order", w.inOrder)
	w.part("forged", w.forged)
	w.part("texts", w.texts)
	w.part("sessions", w.sessions)
	w.part("floods", w.floods)
	w.part("builds", w.builds)
	w.part("lies", w.lies)
	w.part("restarts", w.restarts)
}

// part runs a part of a test, whose world has its T.
func (w *world) part(name string, f func(t *testing.T)) {
	outer := w.T
	outer.Run(name, func(t *testing.T) {
		w.T = t
		defer func() { w.T = outer }()
		f(t)
	})
}

// turnOf creates a Turn of a Session, and returns its UID.
func (w *world) turnOf(name, session string) string {
	w.Helper()
	o := object(w.T, "Turn", name, fmt.Sprintf(`{"document":{"session":"docs","path":"/a.md"},"session":%q}`, session))
	w.must(w.admin.Create(w.Context(), o))
	return string(o.GetUID())
}

// inOrder runs Turns of one Session, which do not wait for an order of their names, one at a time.
func (w *world) inOrder(t *testing.T) {
	s := newServer()
	w.grace = patience
	w.operator(s, nil)
	var uids []string
	for n := range 5 { // before there is a Session
		uids = append(uids, w.turnOf(fmt.Sprintf("order-%d", n), "row"))
	}
	w.must(w.admin.Create(t.Context(), object(t, "Session", "row", `{}`)))
	for n, id := range uids {
		w.until(fmt.Sprintf("turn %d runs", n), func() bool { return s.ran(id) == 1 })
		for _, later := range uids[n+1:] {
			if s.ran(later) != 0 {
				t.Errorf("a turn after %d runs", n)
			}
		}
		s.let(id)
	}
	for n := range uids {
		name := fmt.Sprintf("order-%d", n)
		if x := w.ends(name); x.Status.Phase != v1alpha1.PhasePassed || s.ran(uids[n]) != 1 || w.writes(name) != 2 {
			t.Errorf("%s: %+v, %d writes", name, x.Status, w.writes(name))
		}
	}
	w.until("the Session has the number of its turns", func() bool {
		x := w.session("row")
		return x.Status.Turns != nil && *x.Status.Turns == 5 && x.Status.Head != nil
	})
	if s.most["s_row"] != 1 {
		t.Errorf("%d turns of one session ran at a time", s.most["s_row"])
	}
	// Five turns, one or more looks at the Session: it is no write for each turn that counts, but never
	// more than the turns and its beginning.
	if n := w.writes("row"); n > 6 {
		t.Errorf("the Session was written %d times", n)
	}
}

// forged writes statuses as a user could who may.
func (w *world) forged(t *testing.T) {
	s := newServer()
	w.operator(s, nil)
	id := w.turnOf("running", "none") // waits for a Session
	x := &v1alpha1.Turn{}
	set := func(f func(st *v1alpha1.TurnStatus)) {
		w.until("the status is forged", func() bool {
			w.must(w.admin.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "running"}, x))
			f(&x.Status)
			return w.admin.Status().Update(t.Context(), x) == nil
		})
	}
	// The ticket of another tenant's turn, which goes on.
	s.mu.Lock()
	s.tickets["tk_other"] = &ticket{tenant: "other", runs: 1, end: make(chan struct{})}
	s.mu.Unlock()
	set(func(st *v1alpha1.TurnStatus) { st.Phase, st.Ticket = v1alpha1.PhaseRunning, "tk_other" })
	w.must(w.admin.Create(t.Context(), object(t, "Session", "none", `{}`)))
	if st := w.ends("running").Status; reason(st.Conditions, v1alpha1.Completed) != v1alpha1.ReasonLost || st.Turn != "" {
		t.Errorf("another tenant's ticket: %+v", st)
	}
	if s.tickets["tk_other"].canceled || s.ran(id) != 0 {
		t.Error("a forged ticket did something")
	}
	// A phase that does not exist, and too many conditions.
	x.Status.Phase = "Unheard"
	if err := w.admin.Status().Update(t.Context(), x); err == nil {
		t.Error("an unknown phase")
	}
	w.must(w.admin.Get(t.Context(), client.ObjectKeyFromObject(x), x))
	for n := range 9 {
		meta.SetStatusCondition(&x.Status.Conditions, metav1.Condition{Type: fmt.Sprintf("C%d", n), Reason: "R", Status: "True"})
	}
	if err := w.admin.Status().Update(t.Context(), x); err == nil {
		t.Error("nine conditions")
	}
	// A ticket that has expired is replaced.
	s.mu.Lock()
	s.tickets["tk_old"] = &ticket{tenant: "default", expired: true}
	s.mu.Unlock()
	id = w.turnOf("old", "late")
	w.until("the ticket is forged", func() bool {
		w.must(w.admin.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "old"}, x))
		x.Status.Ticket = "tk_old"
		return w.admin.Status().Update(t.Context(), x) == nil
	})
	w.must(w.admin.Create(t.Context(), object(t, "Session", "late", `{}`)))
	w.until("the turn runs", func() bool { return s.let(id) })
	if st := w.ends("old").Status; st.Phase != v1alpha1.PhasePassed || s.ran(id) != 1 {
		t.Errorf("an expired ticket: %+v", st)
	}
}

// sessions deletes Sessions under both policies, and builds templates.
func (w *world) sessions(t *testing.T) {
	s := newServer()
	w.operator(s, nil)
	ctx := t.Context()
	for name, spec := range map[string]string{"retained": `{}`, "removed": `{"deletionPolicy":"Delete"}`} {
		w.must(w.admin.Create(ctx, object(t, "Session", name, spec)))
		w.until(name+" is ready", func() bool { return reason(w.session(name).Status.Conditions, v1alpha1.Ready) == v1alpha1.ReasonReady })
		w.must(w.admin.Delete(ctx, object(t, "Session", name, `{}`)))
		w.until(name+" is gone", func() bool { return w.session(name) == nil })
	}
	s.mu.Lock()
	_, retained := s.sessions["s_retained"]
	_, removed := s.sessions["s_removed"]
	s.mu.Unlock()
	if !retained || removed {
		t.Errorf("sessions are %v", s.sessions)
	}
	for _, name := range []string{"main", "a.lock"} { // no fork can have this name, and its object goes
		o := object(t, "Session", name, `{"parent":{"session":"retained"},"deletionPolicy":"Delete"}`)
		w.must(w.admin.Create(ctx, o))
		w.until(name+" is refused", func() bool { return reason(w.session(name).Status.Conditions, v1alpha1.Ready) == v1alpha1.ReasonFailed })
		w.must(w.admin.Delete(ctx, o))
		w.until(name+" is gone", func() bool { return w.session(name) == nil })
	}
	for name, want := range map[string]string{"there": v1alpha1.ReasonReady, "missing": v1alpha1.ReasonFailed} {
		w.must(w.admin.Create(ctx, object(t, "TurnTemplate", name, `{"image":"`+name+`"}`)))
		x := &v1alpha1.TurnTemplate{}
		w.until(name+" is "+want, func() bool {
			w.must(w.admin.Get(ctx, client.ObjectKey{Namespace: "default", Name: name}, x))
			return reason(x.Status.Conditions, v1alpha1.Ready) == want
		})
	}
	w.must(w.admin.Create(ctx, object(t, "TurnTemplate", "pinned", `{"image":"there","digest":"`+sum[:70]+`0"}`)))
	w.until("another digest is refused", func() bool {
		x := &v1alpha1.TurnTemplate{}
		w.must(w.admin.Get(ctx, client.ObjectKey{Namespace: "default", Name: "pinned"}, x))
		return reason(x.Status.Conditions, v1alpha1.Ready) == v1alpha1.ReasonDigestMismatch
	})
}

// restarts ends the operator before and after each of its steps in the life of a Turn, and starts
// another.
func (w *world) restarts(t *testing.T) {
	w.grace = patience
	steps := w.lifeWithFault("none", -1)
	if steps < 8 {
		t.Fatalf("a life has %d steps", steps)
	}
	for n := 0; n < steps; n += testsize.Step(3) {
		w.lifeWithFault(fmt.Sprintf("fault-%d", n), n)
	}
	t.Logf("%d restarts", steps)
}

// lifeWithFault follows a Turn whose operator ends at its step number at, and returns how many steps
// there were.
func (w *world) lifeWithFault(name string, at int) int {
	w.Helper()
	s := newServer()
	var steps atomic.Int64
	var crashed atomic.Bool
	down := make(chan struct{})
	step := func() error {
		if crashed.Load() {
			return errCrash
		}
		if n := steps.Add(1) - 1; int(n) == at && crashed.CompareAndSwap(false, true) {
			close(down)
			return errCrash
		}
		return nil
	}
	s.step = step
	stop := w.operator(s, func(bool) error { return step() })
	over := make(chan struct{})
	restarted := make(chan func(), 1)
	go func() {
		select {
		case <-down:
			stop()
			crashed.Store(false) // no step has that number again
			restarted <- w.operator(s, nil)
		case <-over:
			restarted <- stop
		}
	}()
	o := object(w.T, "Turn", name, `{"document":{"session":"docs","path":"/a.md"}}`)
	w.must(w.admin.Create(w.Context(), o))
	id := string(o.GetUID())
	w.until("the turn runs", func() bool { return s.let(id) })
	x := w.ends(name)
	if n := s.ran(id); n != 1 || x.Status.Phase != v1alpha1.PhasePassed {
		w.Errorf("%s: the turn ran %d times: %+v", name, n, x.Status)
	}
	close(over)
	(<-restarted)()
	w.must(w.admin.Delete(w.Context(), o))
	return int(steps.Load())
}

// texts runs Turns whose documents are in the cluster: the server is not asked for them.
func (w *world) texts(t *testing.T) {
	s := newServer()
	w.grace = time.Millisecond
	defer func() { w.grace = 0 }()
	w.operator(s, nil)
	ctx, text := t.Context(), "```bash\necho hello\n```\n"
	sum := fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(text)))
	turn := func(name, document string) {
		w.must(w.admin.Create(ctx, object(t, "Turn", name, `{"document":`+document+`}`)))
	}
	inline := func(more string) string { return fmt.Sprintf(`{"inline":%q%s}`, text, more) }
	turn("inline", inline(""))
	turn("inline-digest", inline(`,"digest":"`+sum+`"`))
	turn("inline-other", inline(`,"digest":"sha256:`+strings.Repeat("0", 64)+`"`))
	turn("inline-bad", `{"inline":"---\nimgae: 1\n---\n"}`)
	const key = `{"configMap":{"name":"docs","key":"a.md"}}`
	turn("map-denied", key)
	for name, want := range map[string]string{"inline-other": v1alpha1.ReasonDigestMismatch, "inline-bad": v1alpha1.ReasonDocumentInvalid,
		"map-denied": v1alpha1.ReasonDenied} {
		if x := w.ends(name); x.Status.Phase != v1alpha1.PhaseRefused || reason(x.Status.Conditions, v1alpha1.Accepted) != want {
			t.Errorf("%s: %+v", name, x.Status)
		}
	}
	// With the right that the chart's operator.configMaps gives; the ConfigMap comes after the Turn.
	w.must(w.admin.Create(ctx, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "maps", Namespace: "default"},
		Rules: []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"configmaps"}}}}))
	w.must(w.admin.Create(ctx, &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "maps", Namespace: "default"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "maps"},
		Subjects: []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "turn-operator"}}}))
	operator, err := w.cluster.Config("turn-operator")
	w.must(err)
	as, err := client.New(operator, client.Options{Scheme: w.scheme})
	w.must(err)
	w.until("the operator may read ConfigMaps", func() bool {
		return apierrors.IsNotFound(as.Get(ctx, client.ObjectKey{Namespace: "default", Name: "docs"}, &corev1.ConfigMap{}))
	})
	turn("map", key)
	turn("map-key", `{"configMap":{"name":"docs","key":"b.md"}}`)
	w.until("the Turn says what it waits for", func() bool { return w.phase("map") == v1alpha1.PhaseWaiting })
	w.must(w.admin.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "docs", Namespace: "default"},
		Data: map[string]string{"a.md": text}}))
	for _, name := range []string{"inline", "inline-digest", "map"} {
		var uid string
		w.until(name+" runs", func() bool { uid = w.uid(name); return s.ran(uid) == 1 })
		s.let(uid)
		if x := w.ends(name); x.Status.Phase != v1alpha1.PhasePassed || x.Status.Document != sum {
			t.Errorf("%s: %+v", name, x.Status)
		}
	}
	if x := w.ends("map-key"); x.Status.Phase != v1alpha1.PhaseRefused {
		t.Errorf("%+v", x.Status)
	}
}

func (w *world) get(name string) *v1alpha1.Turn {
	w.Helper()
	x := &v1alpha1.Turn{}
	w.must(w.admin.Get(w.Context(), client.ObjectKey{Namespace: "default", Name: name}, x))
	return x
}

func (w *world) phase(name string) v1alpha1.Phase { w.Helper(); return w.get(name).Status.Phase }
func (w *world) uid(name string) string           { w.Helper(); return string(w.get(name).UID) }
