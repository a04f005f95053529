package bundle

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"io"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/repo/repotest"
	"turnstone.dev/turnstone/internal/store"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
)

// holds returns an exported session with a file /a of that content.
func holds(t *testing.T, content func(b *store.Batch) turnstone.Content) []byte {
	t.Helper()
	ctx := t.Context()
	p := repotest.New(t)
	p.Leaves(p.Session("story"), func(w tree.Writer) turnstone.TreeRef {
		r := ok[*tree.Root](t)(tree.GetRoot(ctx, w,
			treetest.Make(t, w, treetest.Texts(map[string]string{"/a": "one"})...)))
		d := ok[tree.Directory](t)(tree.GetDirectory(ctx, w, r.Tree))
		d[0].Content = content(w.(*store.Batch))
		d[0].Size = d[0].Content.Size
		var err error
		if r.Tree, r.Hash, err = tree.PutDirectory(ctx, w, d); err != nil {
			t.Fatal(err)
		}
		return ok[turnstone.TreeRef](t)(tree.PutRoot(ctx, w, r))
	})
	var out bytes.Buffer
	ok[*turnstone.ExportReport](t)(host(p.Repo).Export(ctx, ExportRequest{Session: "story"}, &out))
	return out.Bytes()
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// TestImportUnpacksTooMuch checks that no more of a list of repeated chunks is hashed than the
// file's own size allows.
func TestImportUnpacksTooMuch(t *testing.T) {
	ctx := t.Context()
	file := holds(t, func(b *store.Batch) turnstone.Content {
		one := ok[[]byte](t)(hex.DecodeString(
			strings.TrimPrefix(string(ok[turnstone.Digest](t)(b.Put(ctx, make([]byte, 1<<20)))),
				"sha256:")))
		const n = 40 << 10
		list := append([]byte("TURNLST1"),
			bytes.Repeat(binary.LittleEndian.AppendUint32(one, 1<<20), n)...)
		return turnstone.Content{Digest: turnstone.DigestBytes([]byte("another")), Size: n << 20,
			Chunks: ok[turnstone.Digest](t)(b.Put(ctx, list))}
	})
	q := repotest.New(t)
	_, err := host(q.Repo).Import(ctx, ImportRequest{}, bytes.NewReader(file))
	if turnstone.KindOf(err) != turnstone.KindIntegrity ||
		!strings.Contains(err.Error(), "unpacks to more than") || turnstone.HintOf(err) == "" {
		t.Errorf("a file of %d bytes: %v", len(file), err)
	}
	if all := ok[[]turnstone.SessionInfo](t)(q.Repo.Sessions(ctx)); len(all) != 0 {
		t.Errorf("left %v", all)
	}
}

// TestImportSparse checks that a file of zeros, which is stored as one chunk, is accepted.
func TestImportSparse(t *testing.T) {
	const size = 128 << 20
	file := holds(t, func(b *store.Batch) turnstone.Content {
		return ok[turnstone.Content](t)(b.PutContent(t.Context(), io.LimitReader(zeros{}, size),
			size))
	})
	if len(file) > size/maxUnpacking {
		t.Errorf("the file has %d bytes: the bound does not apply", len(file))
	}
	q := repotest.New(t)
	if rep := ok[*turnstone.ImportReport](t)(host(q.Repo).Import(t.Context(), ImportRequest{},
		bytes.NewReader(file))); !rep.Fresh {
		t.Errorf("%+v", rep)
	}
	ok[turnstone.Session](t)(q.CS.DB.Find(t.Context(), "story"))
}

// TestImportCountsContents checks that the bound applies to all contents together.
func TestImportCountsContents(t *testing.T) {
	m := &importer{unpacked: 10 << 20}
	for i, size := range []int64{6 << 20, 3 << 20, 2 << 20, 1 << 20, -1, 1} {
		err := m.admit(turnstone.Content{Size: size, Chunks: "list"})
		if want := i == 2 || i > 3; (err != nil) != want {
			t.Errorf("%d, of %d bytes: %v", i, size, err)
		}
	}
	if err := m.admit(turnstone.Content{Size: 1 << 20}); err != nil {
		t.Errorf("an object: %v", err)
	}
}
