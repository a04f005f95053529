package controller

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
)

// FuzzTemplatePage reads tokens of pages of templates: a place in the list, or an error of the
// caller.
func FuzzTemplatePage(f *testing.F) {
	var all []*v1.Template // newest first, as a list is
	for n := range 3 {
		all = append(all, &v1.Template{Name: string(rune('a' + n)),
			Built: timestamppb.New(time.Unix(int64(1000-n), 0))})
	}
	f.Add(tokenOf(all[1]))
	f.Add("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA")
	f.Add("x")
	f.Fuzz(func(t *testing.T, token string) {
		i, err := after(all, token)
		if err != nil {
			if turnstone.KindOf(err) != turnstone.KindInvalid || turnstone.HintOf(err) == "" {
				t.Fatal(err)
			}
			return
		}
		if i < 0 || i > len(all) {
			t.Fatalf("%q is at %d", token, i)
		}
		for n, one := range all {
			if token == tokenOf(one) && i != n+1 {
				t.Fatalf("the page after %d begins at %d", n, i)
			}
		}
	})
}
