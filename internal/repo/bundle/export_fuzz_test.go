package bundle

import (
	"bytes"
	"context"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/repo/repotest"
)

// FuzzImport checks that an import accepts or rejects any file and does not crash, and that a
// rejected file leaves no session.
func FuzzImport(f *testing.F) {
	x := repotest.New(f).Repo
	f.Add([]byte("session.json"), []byte("{}"))
	f.Add([]byte("session.json"),
		[]byte(`{"format":1,"session":{"id":"s_000000000000000000"},"turns":[{"id":"t_000000000000000000"}]}`))
	f.Add([]byte("objects/"+turnstone.DigestBytes(nil).Hex()), []byte("x"))
	f.Fuzz(func(t *testing.T, name, data []byte) {
		if len(name) > 90 || bytes.IndexByte(name, 0) >= 0 {
			return
		}
		file := repotest.Pack(t, []repotest.Entry{{Name: "session.json", Data: data, Kind: '0'},
			{Name: "x" + string(name), Data: data, Kind: '0'}})
		rep, err := host(x).Import(context.Background(), ImportRequest{}, bytes.NewReader(file))
		if err == nil {
			t.Fatalf("an entry %q was taken: %+v", name, rep)
		}
		if all, err := x.Sessions(context.Background()); err != nil || len(all) != 0 {
			t.Fatalf("left %v, %v", all, err)
		}
		_, _ = host(x).Import(context.Background(), ImportRequest{}, bytes.NewReader(data))
	})
}
