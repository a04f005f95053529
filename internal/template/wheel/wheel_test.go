package wheel

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"testing"
)

func TestParseName(t *testing.T) {
	for file, want := range map[string]Name{
		"uv-0.13.9-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl": {"uv", "0.13.9"},
		"a_b.c-1!2+x-1build-cp311-abi3-manylinux2014_x86_64.whl":            {"a_b.c", "1!2+x"},
		"six-1.16.0-py2.py3-none-any.whl":                                   {},
		"uv-1-py3-none-musllinux_1_1_x86_64.whl":                            {},
		"uv-1-py3-none-manylinux_2_17_aarch64.whl":                          {},
		"uv-1-py3-none-win_amd64.whl":                                       {},
		"uv-1.tar.gz":                                                       {},
		"../uv-1-py3-none-manylinux2014_x86_64.whl":                         {},
		"uv-1/..-py3-none-manylinux2014_x86_64.whl":                         {},
		"": {},
		strings.Repeat("a", 300) + "-1-py3-none-manylinux2014_x86_64.whl": {},
	} {
		if got, err := ParseName(file); got != want || (err == nil) != (want != Name{}) {
			t.Errorf("%q: %+v, %v", file, got, err)
		}
	}
}

const elf = "\x7fELF program"

var one = Name{"x", "1"}

// entry is a file of an archive; its name is below the folder of programs unless it begins with "/".
type entry struct {
	name, content string
	mode          fs.FileMode
}

func archive(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for _, e := range entries {
		h := &zip.FileHeader{Name: "x-1.data/scripts/" + e.name, Method: zip.Deflate}
		if len(e.content) < 100 {
			h.Method = zip.Store
		}
		if rest, other := strings.CutPrefix(e.name, "/"); other {
			h.Name = rest
		}
		h.SetMode(e.mode | 0o644)
		f, err := w.CreateHeader(h)
		if err == nil && !strings.HasSuffix(h.Name, "/") {
			_, err = io.WriteString(f, e.content)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func programs(b []byte) ([]Program, error) {
	return Programs(bytes.NewReader(b), int64(len(b)), one)
}

func TestPrograms(t *testing.T) {
	got, err := programs(archive(t, entry{name: ""}, entry{name: "b", content: "#!/bin/sh\n"},
		entry{name: "a", content: elf}, entry{name: "/x/module.py", content: "import x"},
		entry{name: "/../../etc/passwd", content: elf}, entry{name: "/y-1.data/scripts/y", content: elf},
		entry{name: "/x-1.data/data/bin/z", content: elf}))
	if err != nil || len(got) != 2 || got[0].Name != "a" || string(got[0].Content) != elf ||
		got[1].Name != "b" || string(got[1].Content) != "#!/bin/sh\n" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestHostileWheels(t *testing.T) {
	many := make([]entry, maxPrograms+1)
	for i := range many {
		many[i] = entry{name: fmt.Sprint("p", i), content: elf}
	}
	directory := make([]entry, maxDirectory/100)
	for i := range directory {
		directory[i] = entry{name: fmt.Sprintf("/%060d", i)}
	}
	good := archive(t, entry{name: "a", content: elf})
	damaged := bytes.Replace(good, []byte("ELF"), []byte("ELG"), 1)
	// The directory says that the program is shorter than its content, or far longer.
	size := func(n uint32) []byte {
		b := bytes.Clone(good)
		at := bytes.Index(b, []byte("PK\x01\x02"))
		binary.LittleEndian.PutUint32(b[at+24:], n)
		return b
	}
	for name, tt := range map[string]struct {
		b    []byte
		want string
	}{
		"no archive":        {[]byte("hello"), "not a valid zip file"},
		"empty":             {nil, "not a valid zip file"},
		"cut off":           {good[:len(good)-10], "not a valid zip file"},
		"no programs":       {archive(t, entry{name: "/x/a", content: elf}), "missing or empty"},
		"another wheel's":   {archive(t, entry{name: "/x-2.data/scripts/a", content: elf}), "missing or empty"},
		"up":                {archive(t, entry{name: "../../a", content: elf}), "not plain"},
		"absolute":          {archive(t, entry{name: "//a", content: elf}), "missing or empty"},
		"dots":              {archive(t, entry{name: "..", content: elf}), "not plain"},
		"deeper":            {archive(t, entry{name: "d/a", content: elf}), "not plain"},
		"a folder":          {archive(t, entry{name: "d/"}), "not plain"},
		"a backslash":       {archive(t, entry{name: `..\a`, content: elf}), "not plain"},
		"a zero byte":       {archive(t, entry{name: "a\x00b", content: elf}), "not plain"},
		"a dash":            {archive(t, entry{name: "-rf", content: elf}), "not plain"},
		"a link":            {archive(t, entry{"a", "/etc/passwd", fs.ModeSymlink}), "regular"},
		"a device":          {archive(t, entry{"a", elf, fs.ModeDevice}), "regular"},
		"twice":             {archive(t, entry{name: "a", content: elf}, entry{name: "a", content: elf}), "duplicate"},
		"an unfinished one": {archive(t, entry{name: "a", content: "#!python\n"}), "neither machine code"},
		"an empty one":      {archive(t, entry{name: "a"}), "neither machine code"},
		"many programs":     {archive(t, many...), "more than 32 programs"},
		"a large directory": {archive(t, directory...), errBudget.Error()},
		"damaged content":   {damaged, "checksum"},
		"a size too small":  {size(3), ""},
		"a size too large":  {size(1 << 20), ""},
		"a huge size":       {size(1<<32 - 2), "the programs have more"},
	} {
		got, err := programs(tt.b)
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), tt.want) || got != nil {
			t.Errorf("%s: %d programs, %v", name, len(got), err)
		}
	}
	if _, err := Programs(bytes.NewReader(good), MaxSize+1, one); !errors.Is(err, ErrInvalid) {
		t.Errorf("a large file: %v", err)
	}
}

// TestContentIsBounded checks the bound of what is left for a program, whatever size it claims.
func TestContentIsBounded(t *testing.T) {
	for name, claim := range map[string]uint64{"honest": uint64(len(elf)), "dishonest": 4} {
		b := archive(t, entry{name: "a", content: elf})
		r, err := zip.NewReader(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			t.Fatal(err)
		}
		r.File[0].UncompressedSize64 = claim
		if got, err := read(r.File[0], "a", int64(len(elf))-1); err == nil || got != nil {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		r.File[0].UncompressedSize64 = uint64(len(elf))
		if got, err := read(r.File[0], "a", int64(len(elf))); err != nil || string(got) != elf {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

// FuzzPrograms checks that an archive gives plain names, each once, and bounded programs that can
// run, or an error.
func FuzzPrograms(f *testing.F) {
	f.Add(archive(f, entry{name: "a", content: elf}, entry{name: "b", content: "#!/bin/sh\n"}))
	f.Add(archive(f, entry{name: "../a", content: elf}))
	f.Add(archive(f, entry{"a", "b", fs.ModeSymlink}))
	f.Add([]byte("PK\x05\x06" + strings.Repeat("\x00", 18)))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := programs(b)
		if err != nil {
			if !errors.Is(err, ErrInvalid) || got != nil {
				t.Errorf("%d programs, %v", len(got), err)
			}
			return
		}
		seen, total := map[string]bool{}, 0
		for _, p := range got {
			if seen[p.Name] || strings.ContainsAny(p.Name, "/\\\x00") ||
				strings.HasPrefix(p.Name, ".") || len(p.Content) < 3 {
				t.Errorf("program %q with %d bytes", p.Name, len(p.Content))
			}
			seen[p.Name] = true
			total += len(p.Content)
		}
		if len(got) == 0 || len(got) > maxPrograms || total > maxContent {
			t.Errorf("%d programs with %d bytes", len(got), total)
		}
	})
}
