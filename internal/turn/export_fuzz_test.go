package turn

import (
	"bytes"
	"context"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/statedir"
)

// FuzzImport: whatever a file holds, it is imported or refused, and does not end the
// program; what is refused leaves no session.
func FuzzImport(f *testing.F) {
	x := New(&statedir.Dir{Root: f.TempDir()})
	f.Cleanup(func() { _ = x.Close() })
	f.Add([]byte("session.json"), []byte("{}"))
	f.Add([]byte("session.json"), []byte(`{"format":1,"session":{"id":"s_000000000000000000"},"turns":[{"id":"t_000000000000000000"}]}`))
	f.Add([]byte("objects/"+turnstone.DigestBytes(nil).Hex()), []byte("x"))
	f.Fuzz(func(t *testing.T, name, data []byte) {
		if len(name) > 90 || bytes.IndexByte(name, 0) >= 0 {
			return
		}
		file := packExport(t, []tarEntry{{name: "session.json", data: data, kind: '0'}, {name: "x" + string(name), data: data, kind: '0'}})
		rep, err := x.Import(context.Background(), ImportRequest{}, bytes.NewReader(file))
		if err == nil {
			t.Fatalf("an entry %q was taken: %+v", name, rep)
		}
		if all, err := x.Sessions(context.Background()); err != nil || len(all) != 0 {
			t.Fatalf("left %v, %v", all, err)
		}
		_, _ = x.Import(context.Background(), ImportRequest{}, bytes.NewReader(data))
	})
}
