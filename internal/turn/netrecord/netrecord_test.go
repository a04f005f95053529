package netrecord

import (
	"reflect"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
)

// TestRules checks that a turn that repeats another asks for the same network. A recording is
// replayed: the other turn's own, or the one that the other turn replayed.
func TestRules(t *testing.T) {
	rec := &turnstone.TurnRecord{ID: "t_rec"}
	spec := &turnstone.NetworkSpec{Allow: []string{"a.example"}, Deny: []string{"b.example"},
		Only: true, Open: true, NoHostCA: true}
	asked := document.NetworkRules{Allow: spec.Allow, HasAllow: true, Deny: spec.Deny,
		Intercept: true, NoHostCA: true}
	replays := func(of string) document.NetworkRules {
		r := asked
		r.Replay, r.ReplayOf = true, of
		return r
	}
	for name, c := range map[string]struct {
		was  *turnstone.RecordNetwork
		want document.NetworkRules
	}{
		"nothing was said": {nil, document.NetworkRules{}},
		"rules":            {&turnstone.RecordNetwork{Spec: spec}, asked},
		"recorded": {&turnstone.RecordNetwork{Spec: spec, Index: &turnstone.Content{}},
			replays("t_rec")},
		"replayed": {&turnstone.RecordNetwork{Spec: spec, Replayed: "t_other"},
			replays("t_other")},
		"recorded and replayed": {&turnstone.RecordNetwork{Spec: spec, Replayed: "t_other",
			Index: &turnstone.Content{}}, replays("t_rec")},
	} {
		if got := Rules(c.was, rec); !reflect.DeepEqual(*got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, *got, c.want)
		}
	}
}
