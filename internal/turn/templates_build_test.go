package turn

import (
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/template"
)

func ref(text string) tree.Ref {
	d := turnstone.DigestBytes([]byte(text))
	return tree.Ref{Root: d, Hash: d}
}

// The layers of a template lie below all turns, the topmost first; one that changed
// nothing needs no image; and nobody is told more who has heard enough.
func TestHistoryEndsWithTheTemplate(t *testing.T) {
	at := &branchPoint{layers: []template.Layer{{Tree: ref("a")}, {Tree: ref("b")}, {Tree: ref("b")}, {Tree: ref("c")}}}
	var got []tree.Ref
	for item, err := range at.history(t.Context()) {
		if err != nil || item.Line != "" || item.Context != nil || item.Key != item.Tree.Root {
			t.Errorf("%+v, %v", item, err)
		}
		got = append(got, item.Tree)
	}
	if len(got) != 3 || got[0] != ref("c") || got[1] != ref("b") || got[2] != ref("a") {
		t.Errorf("%v", got)
	}
	n := 0
	for range at.history(t.Context()) {
		n++
		break
	}
	if n != 1 {
		t.Errorf("%d after the end", n)
	}
}
