package template

import (
	"archive/tar"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/fstest"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/template/builtin"
	"turnstone.dev/turnstone/internal/template/registry"
)

var specDir = fstest.MapFS{
	"motd":      {Data: []byte("hello\n")},
	"sub/tool":  {Data: []byte("#!/bin/sh\n")},
	"sub/large": {Data: make([]byte, maxFile+1)},
}

func TestParse(t *testing.T) {
	spec, err := Parse("mine", []byte(`
description = "one of everything"
base = "debian:bookworm"
packages = ["zip", "g++", "zip", "libstdc++6"]
workdir = "/srv/work"
env = { LANG = "C.UTF-8", A_1 = "x = y" }
[[files]]
path = "/usr/local/bin/tool"
source = "sub/tool"
mode = "0755"
[[files]]
path = "/etc/motd"
content = ""
`), specDir)
	if err != nil {
		t.Fatal(err)
	}
	want := &Spec{Name: "mine", Description: "one of everything", Base: "debian:bookworm",
		Packages: []string{"g++", "libstdc++6", "zip"},
		Env:      map[string]string{"LANG": "C.UTF-8", "A_1": "x = y"},
		Files: []File{{"/etc/motd", 0o644, []byte{}},
			{"/usr/local/bin/tool", 0o755, []byte("#!/bin/sh\n")}},
		Workdir: "/srv/work"}
	if !reflect.DeepEqual(spec, want) {
		t.Errorf("got  %+v\nwant %+v", spec, want)
	}
	if spec, err := Parse("", []byte("name = 'own'\nbase = 'debian:bookworm'\n"),
		nil); err != nil || spec.Name != "own" || spec.Workdir != "/workspace" {
		t.Errorf("%+v, %v", spec, err)
	}
}

func TestParseRefuses(t *testing.T) {
	const base = "base = 'debian:bookworm'\n"
	for _, tt := range []struct{ spec, want string }{
		{"", `"base" is missing`},
		{base + "packges = []", `unknown key "packges"; the nearest known key: "packages"`},
		{base + "[[files]]\npath = '/x'\ncontents = ''",
			`"files.contents"; the nearest known key: "content"`},
		{base + "packages = 'curl'", "mine/template.toml:2: packages: want a list"},
		{"base = ['python']", "mine/template.toml:1: base: want a string"},
		{base + "[machine]\ncpus = '2'", "mine/template.toml:3: machine.cpus: want a whole number"},
		{base + "machine = 2", "mine/template.toml:2: machine: want a table"},
		{base + "env = { A = 1 }", "mine/template.toml:2: env.A: want a string"},
		{base + "[[files]]\npath = 1", "files.path: want a string"},
		{base + "files = 'x'", "mine/template.toml:2: files: want a list"},
		{base + "env = 2", "mine/template.toml:2: env: want a table"},
		{base + "commands = [1]", "mine/template.toml:2: commands: want a string"},
		{base + "\n[machine]\nmemroy = '1GiB'",
			`mine/template.toml:4: unknown key "machine.memroy"; the nearest known key: "memory"`},
		{base + "\npip = ['six; rm']", "mine/template.toml:3: pip: "},
		{base + "pip = ['-r x']", "is not a package of pip"},
		{base + "pip = ['https://example.com/x.whl']", "is not a package of pip"},
		{base + "pip = ['./x']", "is not a package of pip"},
		{base + "npm = ['-g']", "is not a package of npm"},
		{base + "npm = ['git+ssh://x/y']", "is not a package of npm"},
		{base + "npm = ['../x']", "is not a package of npm"},
		{base + "npm = 'x'", "mine/template.toml:2: npm: want a list"},
		{base + "commands = ['']", "number 1 is empty"},
		{base + "commands = [\"a\\u0000\"]", "zero byte"},
		{base + "user = 'a b'", "user"},
		{base + "kernel = 'debain'", `the nearest known kernel: "debian"`},
		{base + "[machine]\ncpus = 0", "machine"},
		{base + "[machine]\nmemory = 'much'", "machine.memory"},
		{base + "network = 'on'", `want "off", or a list of hosts`},
		{base + "network = ['exa mple']", "network"},
		{base + "network = [7]", "is not a host"},
		{base + "network = 7", "a list of hosts"},
		{"base = 'mine'", "is the template itself"},
		{"base = 'oci:'", "reference of an image"},
		{"base = 'oci:a b'", "reference of an image"},
		{"base = 'Python'", "is not known"},
		{base + "packages = ['curl'", "mine/template.toml:2"},
		{base + "base = 'debian:bookworm'", "mine/template.toml:2"},
		{base + "name = 'other'", `name is "other", but the template is called "mine"`},
		{base + "description = \"two\\nlines\"", "one line"},
		{"base = 'debian:trixie'", "there is debian:bookworm"},
		{base + "packages = ['curl-']", "not the name of a Debian package"},
		{base + "packages = ['?essential']", "not the name of a Debian package"},
		{base + "packages = ['./local.deb']", "not the name of a Debian package"},
		{base + "packages = ['a,b']", "not the name of a Debian package"},
		{base + "packages = ['-oX=y']", "not the name of a Debian package"},
		{base + "packages = ['']", "not the name of a Debian package"},
		{base + "env = { '1A' = 'x' }", "not the name of a variable"},
		{base + "env = { A = \"x\\ny\" }", "line end"},
		{base + "workdir = 'work'", "absolute"},
		{base + "workdir = '/a/../b'", "absolute"},
		{base + "[[files]]\npath = 'etc/x'\ncontent = ''", "absolute"},
		{base + "[[files]]\npath = '/etc/../../x'\ncontent = ''", "absolute"},
		{base + "[[files]]\npath = '/run/x'\ncontent = ''", "/run is empty"},
		{base + "[[files]]\npath = '/x'", `either "content" or "source"`},
		{base + "[[files]]\npath = '/x'\ncontent = ''\nsource = 'motd'",
			`either "content" or "source"`},
		{base + "[[files]]\npath = '/x'\nsource = '../motd'", "below the spec's folder"},
		{base + "[[files]]\npath = '/x'\nsource = '/etc/passwd'", "below the spec's folder"},
		{base + "[[files]]\npath = '/x'\nsource = 'nothing'", "nothing"},
		{base + "[[files]]\npath = '/x'\nsource = 'sub'", "not a regular file"},
		{base + "[[files]]\npath = '/x'\nsource = 'sub/large'", "not a regular file of at most"},
		{base + "[[files]]\npath = '/x'\ncontent = ''\nmode = '8'", "octal"},
		{base + "[[files]]\npath = '/x'\ncontent = ''\nmode = '77777'", "octal"},
		{base + "[[files]]\npath = '/x'\ncontent = ''\n[[files]]\npath = '/x'\ncontent = ''",
			"duplicate"},
		{strings.Repeat("#", maxSpec+1), "larger than"},
		{strings.Repeat("a.", 9000) + "b = 1", "nested too deeply"},
	} {
		_, err := Parse("mine", []byte(tt.spec), specDir)
		if turnstone.KindOf(err) != turnstone.KindInvalid ||
			!strings.Contains(err.Error(), tt.want) || turnstone.HintOf(err) == "" {
			t.Errorf("%.80q: %v, want %q", tt.spec, err, tt.want)
		}
	}
	for _, name := range []string{"Mine", "-x", "a/b", "..", strings.Repeat("a", 64)} {
		if _, err := Parse(name, []byte(base),
			nil); turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Errorf("name %q: %v", name, err)
		}
	}
	if _, err := Parse("", []byte(base), nil); err == nil {
		t.Error("a spec without any name is taken")
	}
}

// TestDigestVectors: the digests were computed independently, with Python over the canonical JSON.
// Sandboxes and receipts refer to the digests of existing specs permanently: a change here is a
// change of builderVersion, or a mistake.
func TestDigestVectors(t *testing.T) {
	for _, tt := range []struct {
		spec Spec
		want turnstone.Digest
	}{
		{Spec{Base: "debian:bookworm", Workdir: "/workspace"},
			"sha256:475b35df7c92059b2b37e35222bfa63d3e4982d8e8ab74da86e6f502c78216c1"},
		{Spec{Name: "x", Description: "y", Base: "debian:bookworm",
			Packages: []string{"curl", "jq"}, Workdir: "/w",
			Env:   map[string]string{"B": "2", "A": "<1>"},
			Files: []File{{"/etc/motd", 0o644, []byte("hi\n")}}},
			"sha256:35104eab5d5d44a7ba4c761c717ac9680a91adf0f0ce87b05ce3b439c5ae8458"},
		{Spec{Name: "x", Base: "debian:bookworm", Packages: []string{"jq"}, Workdir: "/w",
			User: "dev", Pip: []string{"a==1"}, Npm: []string{"b@2"},
			Commands: []string{"make"}, Machine: turnstone.Machine{CPUs: 2, Memory: 1 << 30,
				Disk: 4 << 30},
			Network: []string{"a.example"}, NoNetwork: true,
			Lock: &Lock{Version: 1, Spec: "sha256:aa", FSHash: "sha256:bb",
				Apt: map[string]string{"jq": "1"}, Pip: []registry.PipFile{{}},
				Npm: []registry.NpmPackage{{}}}},
			"sha256:edac5c68a74436366302da67268fa1015edb6b0553753b6f3938452f1539cd6c"},
		{Spec{Name: "x", Base: "y", BaseDigest: "sha256:aa", base: &Spec{},
			Commands: []string{"make"}, Workdir: "/w"},
			"sha256:d86af2795abc48ffc8833aa79c613950e68302647c24f124caa3bcaca6a274c5"},
	} {
		if got := tt.spec.Digest(); got != tt.want {
			t.Errorf("%+v: %s, want %s", tt.spec, got, tt.want)
		}
	}
}

func TestDigestTellsSpecsApart(t *testing.T) {
	const text = `base = "debian:bookworm"
packages = ["curl", "jq"]
env = { A = "1", B = "2" }
[[files]]
path = "/etc/a"
content = "a"
[[files]]
path = "/etc/b"
content = "b"
`
	parse := func(name, text string) turnstone.Digest {
		t.Helper()
		s, err := Parse(name, []byte(text), nil)
		if err != nil {
			t.Fatal(err)
		}
		return s.Digest()
	}
	first := parse("one", text)
	for name, change := range map[string]string{
		"order of packages": strings.Replace(text, `"curl", "jq"`, `"jq", "curl", "jq"`, 1),
		"order of env":      strings.Replace(text, `A = "1", B = "2"`, `B = "2", A = "1"`, 1),
		"description":       "description = 'other'\n" + text,
		"default mode": strings.Replace(text, `content = "a"`,
			"content = 'a'\nmode = '644'", 1),
		"default workdir": "workdir = '/workspace'\n" + text,
	} {
		if got := parse("two", change); got != first {
			t.Errorf("%s makes another template", name)
		}
	}
	for name, change := range map[string]string{
		"package":      strings.Replace(text, `"jq"`, `"yq"`, 1),
		"env value":    strings.Replace(text, `A = "1"`, `A = "3"`, 1),
		"env name":     strings.Replace(text, `A = "1"`, `C = "1"`, 1),
		"file content": strings.Replace(text, `content = "a"`, `content = "c"`, 1),
		"file path":    strings.Replace(text, `"/etc/a"`, `"/etc/c"`, 1),
		"file mode":    strings.Replace(text, `content = "a"`, "content = 'a'\nmode = '600'", 1),
		"workdir":      "workdir = '/w'\n" + text,
	} {
		if got := parse("one", change); got == first {
			t.Errorf("another %s makes the same template", name)
		}
	}
}

func TestBuiltInSpecsParse(t *testing.T) {
	names, err := fs.Glob(builtin.FS, "*/"+specFile)
	if err != nil || len(names) < 2 {
		t.Fatalf("%v, %v", names, err)
	}
	s := NewStore(t.TempDir())
	for _, p := range names {
		spec, err := s.Spec(filepath.Dir(p))
		if err != nil || spec.Description == "" || spec.base == nil &&
			spec.Env["LANG"] != "C.UTF-8" {
			t.Errorf("%s: %+v, %v", p, spec, err)
		}
	}
}

func TestReadSpec(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "folder")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(specFile, "base = 'debian:bookworm'\n[[files]]\npath = '/x'\nsource = 'data'\n")
	write("data", "content")
	write("other.toml", "name = 'other'\nbase = 'debian:bookworm'\n")
	for path, name := range map[string]string{dir: "folder", filepath.Join(dir, specFile): "folder",
		filepath.Join(dir, "other.toml"): "other"} {
		spec, err := readSpec(path)
		if err != nil || spec.Name != name {
			t.Errorf("%s: %+v, %v", path, spec, err)
		}
	}
	if err := os.Remove(filepath.Join(dir, "data")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "data")); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, filepath.Join(dir, "nothing"), t.TempDir(), "/dev/null"} {
		if _, err := readSpec(path); turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("base = 'debian:bookworm'\npackages = ['curl']\nenv = { A = 'b' }\n[[files]]\n" +
		"path = '/x'\nsource = 'motd'\n")
	f.Add("[env]\nA = 1979-05-27T07:32:00Z\n")
	f.Add("files = [{path = '/a', content = '''\nx'''}]\nname = \"\\u0000\"")
	f.Fuzz(func(t *testing.T, text string) {
		spec, err := Parse("x", []byte(text), specDir)
		if err != nil {
			var typed *turnstone.Error
			if !errors.As(err, &typed) || typed.Kind != turnstone.KindInvalid {
				t.Fatalf("untyped error: %v", err)
			}
			return
		}
		if _, err := turnstone.ParseDigest(string(spec.Digest())); err != nil {
			t.Fatal(err)
		}
		for _, p := range spec.Packages {
			if strings.ContainsAny(p, ", /?~=") || strings.HasPrefix(p, "-") ||
				strings.HasSuffix(p, "-") {
				t.Fatalf("package %q reaches apt", p)
			}
		}
	})
}

// TestSettle: the folders in which apt works belong to root or to _apt, depending on the build.
func TestSettle(t *testing.T) {
	for _, p := range []string{"var/lib/apt/lists/partial", "var/cache/apt/archives/partial"} {
		hdr := &tar.Header{Uid: 42, Gid: 5, Uname: "_apt", Gname: "x"}
		if settle(p, hdr); hdr.Uid != 0 || hdr.Gid != 0 || hdr.Uname != "" || hdr.Gname != "" {
			t.Errorf("%s is left to %+v", p, hdr)
		}
	}
	hdr := &tar.Header{Uid: 42}
	if settle("srv/x", hdr); hdr.Uid != 42 {
		t.Errorf("srv/x lost its owner: %+v", hdr)
	}
}

// TestReadSpecNamesTheFile checks that a fault is reported at the given path, whatever the spec's
// name is.
func TestReadSpecNamesTheFile(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, specFile)
	for text, want := range map[string]string{
		"base = \"python\"\npackges = []":                 file + `:2: unknown key "packges"`,
		"name = \"x\"\nbase = \"debian:trixie\"":          file + `:2: base`,
		"base = python":                                   file + ":1: ",
		"name = \"x\"\nbase = \"python\"\nmachine = true": file + ":3: machine",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{dir, file} {
			if _, err := readSpec(path); err == nil || !strings.HasPrefix(err.Error(), want) {
				t.Errorf("%s: %q: %v, want %q", path, text, err, want)
			}
		}
	}
}
