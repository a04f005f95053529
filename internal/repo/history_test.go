package repo_test

import (
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/repo"
)

func ref(text string) turnstone.TreeRef {
	d := turnstone.DigestBytes([]byte(text))
	return turnstone.TreeRef{Root: d, Hash: d}
}

// TestHistoryEndsWithTheTemplate checks that the layers of a template are below all turns, the
// topmost first, that a layer without changes needs no image, and that a caller may stop.
func TestHistoryEndsWithTheTemplate(t *testing.T) {
	layers := []turnstone.TemplateLayer{{Tree: ref("a")}, {Tree: ref("b")}, {Tree: ref("b")},
		{Tree: ref("c")}}
	history := (&repo.ContextStore{}).History(t.Context(), nil, layers)
	var got []turnstone.TreeRef
	for item, err := range history {
		if err != nil || item.Line != "" || item.Context != nil || item.Key != item.Tree.Root {
			t.Errorf("%+v, %v", item, err)
		}
		got = append(got, item.Tree)
	}
	if len(got) != 3 || got[0] != ref("c") || got[1] != ref("b") || got[2] != ref("a") {
		t.Errorf("%v", got)
	}
	n := 0
	for range history {
		n++
		break
	}
	if n != 1 {
		t.Errorf("%d after the end", n)
	}
}
