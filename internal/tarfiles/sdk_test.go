package tarfiles

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
)

var update = flag.Bool("update", false, "write the vectors of the SDKs")

const sdkArchives = "../../sdk/testdata/archives.json"

// An sdkArchive is a stream of a path called got, and what an SDK has to make of it.
type sdkArchive struct {
	Name    string   `json:"name"`
	Entries int      `json:"entries,omitempty"` // a bound; 0: the default
	Bytes   int64    `json:"bytes,omitempty"`   // a bound; 0: the default
	Blocks  [][]byte `json:"blocks"`            // of 512 bytes, without the zeros at their ends
	// Fault is "refused" or "exhausted"; empty: Files are what is there afterwards, without folders.
	Fault string   `json:"fault,omitempty"`
	Files []string `json:"files,omitempty"`
}

func (a sdkArchive) stream() (b []byte) {
	for _, block := range a.Blocks {
		b = append(b, block...)
		b = append(b, make([]byte, 512-len(block))...)
	}
	return b
}

func sdkCase(t *testing.T, name, fault string, files []string, entries ...entry) sdkArchive {
	t.Helper()
	a := sdkArchive{Name: name, Fault: fault, Files: files}
	for block := range slices.Chunk(stream(t, entries...), 512) {
		a.Blocks = append(a.Blocks, bytes.TrimRight(block, "\x00"))
	}
	return a
}

func sdkCases(t *testing.T) []sdkArchive {
	f := func(name string) entry { return file(name, "x") }
	special := func(name string, flag byte, link string) entry {
		return entry{Header: tar.Header{Name: name, Typeflag: flag, Linkname: link, Mode: 0o755}}
	}
	with := func(change func(*sdkArchive), a sdkArchive) sdkArchive { change(&a); return a }
	deep := func(n int) string { return "got/" + strings.Repeat("d/", n-2) + "f" }
	all := []sdkArchive{
		sdkCase(t, "a folder", "", []string{"got/a", "got/b/c", "got/l"}, special("got/", tar.TypeDir, ""),
			f("got/a"), special("got/b/", tar.TypeDir, ""), f("got/b/c"),
			special("got/l", tar.TypeSymlink, "b/c")),
		sdkCase(t, "a file", "", []string{"got"}, f("got")),
		sdkCase(t, "a name with a dot", "", []string{"got/a"}, f("./got/./a")),
		sdkCase(t, "another name", "refused", nil, f("Makefile")),
		sdkCase(t, "another name later", "refused", nil, f("got/a"), f(".git/hooks/x")),
		sdkCase(t, "a name that begins alike", "refused", nil, f("gotten")),
		sdkCase(t, "above", "refused", nil, f("../got")),
		sdkCase(t, "above from below", "refused", nil, f("got/../../x")),
		sdkCase(t, "above and back", "refused", nil, f("got/../got/x")),
		sdkCase(t, "an absolute name", "refused", nil, f("/got/a")),
		sdkCase(t, "through a link", "refused", nil, special("got/b/", tar.TypeDir, ""),
			special("got/l", tar.TypeSymlink, "b"), f("got/l/x")),
		sdkCase(t, "links that lead out", "", []string{"got/a"}, f("got/a"),
			special("got/l", tar.TypeSymlink, "../x"), special("got/m", tar.TypeSymlink, "/etc/passwd"),
			special("got/n", tar.TypeSymlink, "a/../../x")),
		sdkCase(t, "devices and hard links", "", []string{"got/a"}, special("got/p", tar.TypeFifo, ""),
			special("got/c", tar.TypeChar, ""), special("got/h", tar.TypeLink, "/etc/passwd"), f("got/a")),
		with(func(a *sdkArchive) { a.Entries = 3 }, sdkCase(t, "entries within the bound", "",
			[]string{"got/a", "got/b", "got/c"}, f("got/a"), f("got/b"), f("got/c"))),
		with(func(a *sdkArchive) { a.Entries = 3 }, sdkCase(t, "too many entries", "exhausted", nil,
			f("got/a"), f("got/b"), f("got/c"), f("got/d"))),
		with(func(a *sdkArchive) { a.Entries = 3 }, sdkCase(t, "too many folders", "exhausted", nil,
			special("got/", tar.TypeDir, ""), special("got/a/", tar.TypeDir, ""),
			special("got/b/", tar.TypeDir, ""), special("got/c/", tar.TypeDir, ""))),
		with(func(a *sdkArchive) { a.Bytes = 2 }, sdkCase(t, "too many bytes", "exhausted", nil,
			f("got/a"), f("got/b"), f("got/c"))),
		sdkCase(t, "as deep as may be", "", []string{deep(maxDepth)}, f(deep(maxDepth))),
		sdkCase(t, "too deep", "refused", nil, f(deep(maxDepth+1))),
		sdkCase(t, "folders that are too deep", "refused", nil,
			special(deep(maxDepth+1)+"/", tar.TypeDir, "")),
		sdkCase(t, "as long as may be", "", []string{"got/" + strings.Repeat("n", maxPart)},
			f("got/"+strings.Repeat("n", maxPart))),
		sdkCase(t, "a name that is too long", "refused", nil, f("got/"+strings.Repeat("n", maxPart+1))),
		sdkCase(t, "a name of too many bytes", "refused", nil,
			f("got/"+strings.Repeat("é", maxPart/2+1))),
		sdkCase(t, "a path that is too long", "refused", nil,
			f("got/"+strings.Repeat(strings.Repeat("n", 200)+"/", maxName/200+1)+"f")),
		with(func(a *sdkArchive) { a.Blocks = a.Blocks[:1] },
			sdkCase(t, "a file that is cut", "refused", nil, f("got/a"))),
		with(func(a *sdkArchive) { a.Blocks[0][0] ^= 1 },
			sdkCase(t, "a damaged header", "refused", nil, f("got/a"))),
	}
	return all
}

// TestSDKArchives compares what Unpack makes of archives with the list that the SDKs test against.
// -update writes the list again.
func TestSDKArchives(t *testing.T) {
	all := sdkCases(t)
	for _, a := range all {
		dest := t.TempDir()
		err := Unpack(t.Context(), bytes.NewReader(a.stream()), dest+"/", TopInState("got"),
			Limits{Entries: a.Entries, Bytes: turnstone.Bytes(a.Bytes)})
		var files []string
		_ = filepath.WalkDir(dest, func(path string, d fs.DirEntry, _ error) error {
			if rel, _ := filepath.Rel(dest, path); !d.IsDir() {
				files = append(files, rel)
			}
			return nil
		})
		want := map[string]turnstone.Kind{"refused": turnstone.KindInvalid,
			"exhausted": turnstone.KindExhausted}[a.Fault]
		if (err == nil) != (a.Fault == "") || a.Fault != "" && turnstone.KindOf(err) != want ||
			a.Fault == "" && !slices.Equal(files, a.Files) {
			t.Errorf("%s: %v, %v", a.Name, err, files)
		}
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", "  ")
	if err := e.Encode(map[string]any{"cases": all}); err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(sdkArchives, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if kept, err := os.ReadFile(sdkArchives); err != nil || !bytes.Equal(kept, b.Bytes()) {
		t.Errorf("%s is not what this test writes: run it with -update: %v", sdkArchives, err)
	}
}
