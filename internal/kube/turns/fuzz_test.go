package turns

import (
	"encoding/json"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/kube/v1alpha1"
)

// FuzzTurn checks that the sizes of every object are an order or a refusal, and that the report of an
// untrusted server fits into a status.
func FuzzTurn(f *testing.F) {
	f.Add([]byte(`{"timeout":"1h30m","machine":{"cpus":2,"memory":"512Mi","disk":"4Gi"}}`), []byte(`{}`))
	f.Add([]byte(`{"timeout":"-1s","machine":{"memory":"9999999Ti"}}`), []byte(`{"steps":[{"status":"passed"},{"status":"failed"}],"result":"failed"}`))
	f.Fuzz(func(t *testing.T, spec, report []byte) {
		x := &v1alpha1.Turn{}
		if json.Unmarshal(spec, &x.Spec) == nil {
			var o Order
			if err := sizes(&o, &x.Spec); err != nil {
				if no, ok := err.(*refusal); !ok || len(no.message) > 2*maxText {
					t.Fatalf("%T", err)
				}
			} else if o.Memory < 0 || o.Disk < 0 {
				t.Fatalf("%+v", o)
			}
		}
		p := &turnstone.TurnReport{}
		if json.Unmarshal(report, p) != nil {
			return
		}
		p.Duration = time.Duration(p.Millis) * time.Millisecond
		describe(&x.Status, p)
		phase, reason, message := outcome(run{report: p})
		s := x.Status
		if phase == "" || reason == "" || len(message) > maxText+3 || len(s.Turn) > 64 || len(s.Session) > 64 || len(s.Branch) > 100 ||
			len(s.Image) > 255 || len(s.Template) > 71 || len(s.State) > 71 || len(s.Record) > 71 || s.Finished == nil {
			t.Fatalf("%s %s %q %+v", phase, reason, message, s)
		}
	})
}
