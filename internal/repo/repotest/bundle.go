package repotest

import (
	"archive/tar"
	"bytes"
	"io"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// An Entry is an entry of an exported session.
type Entry struct {
	Name string
	Data []byte
	Kind byte
	Size int64 // the size in its header; 0: that of Data
}

// Unpack returns the entries of an exported session.
func Unpack(t testing.TB, file []byte) []Entry {
	t.Helper()
	z := OK[*zstd.Decoder](t)(zstd.NewReader(bytes.NewReader(file)))
	defer z.Close()
	var all []Entry
	for tr := tar.NewReader(z); ; {
		h, err := tr.Next()
		if err == io.EOF {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, Entry{Name: h.Name, Data: OK[[]byte](t)(io.ReadAll(tr)),
			Kind: h.Typeflag})
	}
}

// Pack returns an exported session with these entries, which may be damaged.
func Pack(t testing.TB, entries []Entry) []byte {
	t.Helper()
	var out bytes.Buffer
	z := OK[*zstd.Encoder](t)(zstd.NewWriter(&out))
	tw := tar.NewWriter(z)
	for _, e := range entries {
		h := &tar.Header{Name: e.Name, Typeflag: e.Kind, Size: int64(len(e.Data)), Mode: 0o644}
		if e.Size != 0 {
			h.Size = e.Size
		}
		if err := tw.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := tw.Write(e.Data); err != nil {
			t.Fatal(err)
		}
	}
	_ = tw.Flush() // an error: e.Size promised more data
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}
