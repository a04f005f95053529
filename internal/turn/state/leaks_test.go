package state

import (
	"errors"
	"strings"
	"testing"

	"turnstone.dev/turnstone/internal/repo/repotest"
	"turnstone.dev/turnstone/internal/secret"
	"turnstone.dev/turnstone/internal/store/tree"
)

// TestQuotedIsNotKept checks that a state is searched for all forms in which bash writes a value:
// in contents, names, targets of links and attributes.
func TestQuotedIsNotKept(t *testing.T) {
	const value = "p&ss'$XYZZYrd"
	for _, form := range []string{value, `declare -x API_TOKEN="p&ss'\$XYZZYrd"`,
		`COPY='p&ss'\''$XYZZYrd'`, `p\&ss\'\$XYZZYrd`} {
		set := repotest.OK[*secret.Set](t)(secret.New([]string{"TOKEN=" + value}))
		contents := newLeakWatch(set)
		if _, err := contents.inspect("/root/env.sh").Write(
			[]byte("x\n" + form + "\n")); err != nil {
			t.Fatal(err)
		}
		for where, err := range map[string]error{
			"contents": contents.found(), "name": newLeakWatch(set).check("/"+form, &tree.Attr{}),
			"target": newLeakWatch(set).check("/x", &tree.Attr{Target: form}),
			"attribute": newLeakWatch(set).check("/x",
				&tree.Attr{Xattrs: []tree.Xattr{{Name: "user.x", Value: []byte(form)}}}),
		} {
			if !errors.Is(err, secret.ErrFound) || strings.Contains(err.Error(), "XYZZY") {
				t.Errorf("%s of %s: %v", where, form, err)
			}
		}
	}
}
