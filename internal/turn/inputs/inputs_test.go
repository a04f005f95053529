package inputs

import (
	"testing"

	"turnstone.dev/turnstone/internal/repo/repotest"
	"turnstone.dev/turnstone/internal/secret"
)

// TestQuotedIsNotKept checks that inputs are searched for all forms in which bash writes a value.
func TestQuotedIsNotKept(t *testing.T) {
	const value = "p&ss'$XYZZYrd"
	for _, form := range []string{value, `declare -x API_TOKEN="p&ss'\$XYZZYrd"`,
		`COPY='p&ss'\''$XYZZYrd'`, `p\&ss\'\$XYZZYrd`} {
		set := repotest.OK[*secret.Set](t)(secret.New([]string{"TOKEN=" + value}))
		in := &input{dest: "/x"}
		if _, err := in.writer(t.TempDir(), set).Write([]byte(form)); err != nil ||
			in.scan.Found() != "TOKEN" {
			t.Errorf("%s is kept as an input: %v", form, err)
		}
		_ = in.file.Close()
	}
}

// TestInputWithSecret checks that a file with a secret's value is not kept as an input, whatever
// the sizes of the writes.
func TestInputWithSecret(t *testing.T) {
	set := repotest.OK[*secret.Set](t)(secret.New([]string{"TOKEN=tok-5f3a-XYZZY"}))
	for _, parts := range [][]string{{"a tok-5f3a-XYZZY"}, {"a tok-5f3", "a-XYZ", "ZY b"}} {
		in := &input{dest: "/x"}
		w := in.writer(t.TempDir(), set)
		for _, p := range parts {
			if _, err := w.Write([]byte(p)); err != nil {
				t.Fatal(err)
			}
		}
		st, err := in.file.Stat()
		if err != nil || !in.over || in.scan.Found() != "TOKEN" || st.Size() != 0 {
			t.Errorf("%q: %+v, %v, %v", parts, in, st.Size(), err)
		}
		_ = in.file.Close()
	}
}
