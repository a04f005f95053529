package turns_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/kube/v1alpha1"
)

// floods has namespaces with more Turns, and longer documents, than there are places for. Another
// namespace's Turn runs meanwhile, and later all have run.
func (w *world) floods(t *testing.T) {
	for name, tt := range map[string]struct {
		most, held, text, runs int
	}{
		"turns":     {most: 4, runs: 2},
		"documents": {held: 4096, text: 1000, runs: 3}, // the third begins below half, and ends above
	} {
		s := newServer()
		s.texts["/long.md"] = "```sh\ntrue\n```\n" + strings.Repeat("x", tt.text) + "\n"
		w.most, w.held = tt.most, tt.held
		stop := w.operator(s, nil)
		flood, quiet := "flood-"+name, "quiet-"+name
		w.namespace(flood)
		w.namespace(quiet)
		var uids []string
		turn := func(namespace, name string) {
			o := object(t, "Turn", name, `{"document":{"session":"docs","path":"/long.md"}}`)
			o.SetNamespace(namespace)
			w.must(w.admin.Create(t.Context(), o))
			uids = append(uids, string(o.GetUID()))
		}
		for n := range 6 {
			turn(flood, fmt.Sprintf("flood-%d", n))
		}
		w.until("the flood has its places", func() bool { return s.running(flood) == tt.runs })
		turn(quiet, "quiet")
		w.until("the other namespace's turn runs", func() bool { return s.running(quiet) == 1 })
		if n := s.running(flood); n != tt.runs {
			t.Errorf("%s: %d of the flood run, not %d", name, n, tt.runs)
		}
		for left := uids; len(left) > 0; time.Sleep(time.Millisecond) {
			var still []string
			for _, id := range left {
				if !s.let(id) {
					still = append(still, id)
				}
			}
			left = still
		}
		for n := range 6 {
			w.endsIn(flood, fmt.Sprintf("flood-%d", n))
		}
		w.endsIn(quiet, "quiet")
		stop()
	}
	w.most, w.held = 0, 0
}

// builds has a namespace whose images never come. Another one's is built.
func (w *world) builds(t *testing.T) {
	s := newServer()
	var waits atomic.Int64
	s.build = func(ctx context.Context, namespace string) error {
		if namespace != "slow-builds" {
			return nil
		}
		waits.Add(1)
		<-ctx.Done()
		return ctx.Err()
	}
	defer w.operator(s, nil)()
	w.namespace("slow-builds")
	for n := range 8 {
		o := object(t, "TurnTemplate", fmt.Sprintf("slow-%d", n), `{"image":"slow"}`)
		o.SetNamespace("slow-builds")
		w.must(w.admin.Create(t.Context(), o))
	}
	w.until("builds wait", func() bool { return waits.Load() >= 3 })
	w.must(w.admin.Create(t.Context(), object(t, "TurnTemplate", "quick", `{"image":"quick"}`)))
	x := &v1alpha1.TurnTemplate{}
	w.until("another namespace's is built", func() bool {
		w.must(w.admin.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "quick"}, x))
		return reason(x.Status.Conditions, v1alpha1.Ready) == v1alpha1.ReasonReady
	})
}

// lies has reports that no object can have. The Turn ends as they say, and with nothing else of them.
func (w *world) lies(t *testing.T) {
	s := newServer()
	lies := []func(p *turnstone.TurnReport){
		func(p *turnstone.TurnReport) { p.Started = time.Date(12345, 1, 1, 0, 0, 0, 0, time.UTC) },
		func(p *turnstone.TurnReport) { p.Started = time.Date(-5, 1, 1, 0, 0, 0, 0, time.UTC) },
		func(p *turnstone.TurnReport) {
			p.Template = turnstone.Digest("sha256:" + strings.Repeat("\x00", 64))
			p.FSHash = turnstone.Digest("sha256:" + strings.Repeat("<", 64))
		},
		func(p *turnstone.TurnReport) {
			p.ID, p.Session, p.Branch = "\xff\xfe", "\x00", strings.Repeat("x", 1000)
			p.Image, p.Number, p.Duration = "\x1b[2J", -1, -1<<63
		},
	}
	var at atomic.Int64
	s.lie = func(p *turnstone.TurnReport) { lies[at.Load()](p) }
	defer w.operator(s, nil)()
	for n := range lies {
		at.Store(int64(n))
		name := fmt.Sprintf("lie-%d", n)
		o := object(t, "Turn", name, `{"document":{"session":"docs","path":"/a.md"}}`)
		w.must(w.admin.Create(t.Context(), o))
		w.until("the turn runs", func() bool { return s.let(string(o.GetUID())) })
		x := w.ends(name).Status
		if x.Phase != v1alpha1.PhasePassed || x.Finished == nil || x.Template != "" || x.State != "" {
			t.Errorf("lie %d: %+v", n, x)
		}
	}
}
