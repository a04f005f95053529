//go:build unix

package manifest

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
)

const whole = `
[sandbox]
image = "python"
substrate = "gvisor"
isolation = "any"
guest = "bookworm-amd64"
network = { allow = ["api.example.com:443"], deny = ["10.0.0.0/8"], record = true }
cpus = 2
memory = "2GiB"
disk = "1GiB"
timeout = "10m"
deterministic = false
[session]
name = "research"
branch = "fix/a"
branches = ["main", "fix/*"]
[templates]
tools = "templates/tools"
`

func TestParse(t *testing.T) {
	m, err := Parse("p/turnstone.toml", []byte(whole))
	if err != nil {
		t.Fatal(err)
	}
	on := true
	want := document.Defaults{Place: "p/turnstone.toml", Substrate: "gvisor", Guest: "bookworm-amd64",
		Branches: []string{"main", "fix/*"},
		Front: document.FrontMatter{Image: "python", Isolation: document.IsolationAny, CPUs: 2,
			Memory: 2 << 30, Disk: 1 << 30, Timeout: 10 * time.Minute, Network: &on,
			NetworkRules: &document.NetworkRules{Allow: []string{"api.example.com:443"},
				HasAllow: true, Deny: []string{"10.0.0.0/8"}, Record: true},
			Session: "research", Branch: "fix/a"}}
	if !reflect.DeepEqual(m.Defaults, want) {
		t.Errorf("read as %+v", m.Defaults)
	}
	if at := m.TemplateOf("tools"); at != filepath.Join("p", "templates", "tools") {
		t.Errorf("the template is in %q", at)
	}
}

func TestParseRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"[sandbx]":                          `unknown key "sandbx"; the nearest known one is "sandbox"`,
		"[sandbox]\nimge = 'x'":             `unknown key "sandbox.imge"; the nearest known one is "sandbox.image"`,
		"[sandbox]\nfiles = ['x']":          `unknown key "sandbox.files"`,
		"[sandbox]\nhome = 'x'":             `unknown key "sandbox.home"`,
		"[sandbox]\nimage = ''":             "image is empty",
		"[sandbox]\nimage = 3":              "image",
		"[sandbox]\nsubstrate = 'gvisr'":    `the nearest one is "gvisor"`,
		"[sandbox]\nguest = 'bookworm'":     `the nearest one is "bookworm-amd64"`,
		"[sandbox]\nguest = ''":             `sandbox.guest: "" is not a known value`,
		"[sandbox]\nisolation = 'vm'":       `isolation: "vm" is neither microvm nor any`,
		"[sandbox]\ncpus = 0":               `cpus: "0" is not a number of CPUs`,
		"[sandbox]\nmemory = '1KiB'":        "memory: 1KiB is not between",
		"[sandbox]\ntimeout = '5'":          "timeout",
		"[sandbox]\ndeterministic = 'yes'":  "deterministic",
		"[sandbox]\nnetwork = 3":            "sandbox.network is neither",
		"[sandbox]\nnetwork = 'maybe'":      `network: "maybe" is not on, off`,
		"[sandbox]\nnetwork = 'replay'":     "a recording belongs to one turn",
		"[sandbox.network]\nreplay = 'x'":   "a recording belongs to one turn",
		"[sandbox.network]\nallw = ['x']":   `the nearest known one is "allow"`,
		"[sandbox.network]\nallow = []":     `write network = "off"`,
		"[sandbox.network]\nallow = [1]":    "a rule that is not a string",
		"[sandbox.network]\nallow = 'x'":    "neither a list of rules",
		"[session]\nname = 'a b'":           "session",
		"[session]\nbranch = 'b'":           "session.name is missing",
		"[session]\nbranches = ['[']":       "is not a pattern of names",
		"[templates]\na = '../b'":           "is not a path below the manifest's folder",
		"[templates]\na = '/b'":             "is not a path below the manifest's folder",
		"[templates]\n'a b' = 'b'":          "is not a name of a template",
		"[templates]\na = 1":                "templates",
		"[sandbox\n":                        "line 2",
		strings.Repeat("a.", 9000) + "b=1":  "nested too deeply",
		strings.Repeat("#", MaxFile) + "\n": "more than",
	} {
		_, err := Parse("m.toml", []byte(text))
		if err == nil || !strings.Contains(err.Error(), want) ||
			turnstone.KindOf(err) != turnstone.KindInvalid || !strings.Contains(err.Error(), "m.toml") {
			t.Errorf("%.60q gives %v, want %q", text, err, want)
		}
	}
}

// TestFind checks that the nearest manifest counts, and where the search ends.
func TestFind(t *testing.T) {
	top := t.TempDir()
	real, err := filepath.EvalSymlinks(top)
	if err != nil {
		t.Fatal(err)
	}
	home := filepath.Join(real, "above", "home")
	deep := filepath.Join(home, "project", "docs")
	if err := os.MkdirAll(deep, 0o700); err != nil {
		t.Fatal(err)
	}
	write := func(dir string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, File), []byte("[sandbox]\ncpus = 1\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	found := func(dir, home string) string {
		t.Helper()
		m, notice, err := Find(dir, home)
		if err != nil || notice != "" {
			t.Fatal(notice, err)
		}
		if m == nil {
			return ""
		}
		return m.Path
	}
	write(filepath.Dir(home)) // above the home
	if at := found(deep, home); at != "" {
		t.Errorf("above the home %s counts", at)
	}
	if at := found(deep, ""); at != filepath.Join(filepath.Dir(home), File) {
		t.Errorf("without a home: %q", at)
	}
	write(home)
	if at := found(deep, home); at != filepath.Join(home, File) {
		t.Errorf("of the home: %q", at)
	}
	write(deep)
	if at := found(deep, home); at != filepath.Join(deep, File) {
		t.Errorf("beside the document: %q", at)
	}
	t.Chdir(deep)
	if at := found(".", home); at != File {
		t.Errorf("relative: %q", at)
	}
	if err := os.Remove(filepath.Join(deep, File)); err != nil {
		t.Fatal(err)
	}
	if at := found(".", home); at != filepath.Join("..", "..", File) {
		t.Errorf("relative, above: %q", at)
	}
	if m, _, err := Find(filepath.Join(deep, "none"), home); m != nil || err != nil {
		t.Errorf("a folder that does not exist: %v, %v", m, err)
	}
	if err := syscall.Mkfifo(filepath.Join(deep, File), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Find(deep, home); err == nil ||
		!strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a pipe gives %v", err)
	}
}

// TestOtherOwner checks that a manifest of another user is not used, and named.
func TestOtherOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root gives files away")
	}
	top, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	dir, name := filepath.Join(top, "theirs"), filepath.Join(top, File)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(name, 4242, -1); err != nil {
		t.Fatal(err)
	}
	m, notice, err := Find(dir, "")
	if m != nil || err != nil || !strings.Contains(notice, "belongs to user 4242 and is not used") {
		t.Errorf("%v, %q, %v", m, notice, err)
	}
	if m, err := Load(name); err != nil || m == nil {
		t.Errorf("a manifest that the caller names: %v", err)
	}
	if err := os.Chown(dir, 4242, -1); err != nil { // the search ends where the owner changes
		t.Fatal(err)
	}
	if m, notice, err := Find(dir, ""); m != nil || notice != "" || err != nil {
		t.Errorf("%v, %q, %v", m, notice, err)
	}
}

// TestWritable: a manifest that others can write is not used, and its group is others unless it has the owner's number.
func TestWritable(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, File)
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	find := func(mode fs.FileMode, group int, want string) {
		t.Helper()
		if err := errors.Join(os.Chown(name, -1, group), os.Chmod(name, mode)); err != nil {
			t.Fatal(err)
		}
		m, notice, err := Find(dir, "")
		if err != nil || (m == nil) != (want != "") || !strings.Contains(notice, want) || want == "" && notice != "" {
			t.Errorf("%o of group %d: %v, %q, %v", mode, group, m, notice, err)
		}
		if m, err := Load(name); err != nil || m == nil {
			t.Errorf("a manifest that the caller names: %v", err)
		}
	}
	find(0o644, -1, "")
	find(0o666, -1, "can be written by everybody and is not used")
	find(0o602, -1, "can be written by everybody and is not used")
	if os.Geteuid() == 0 { // only root gives files to any group
		find(0o664, 0, "")
		find(0o664, 4242, "can be written by group 4242 and is not used; --manifest "+name+" uses it")
		find(0o644, 4242, "")
	}
}

// FuzzParse checks that no text makes a manifest that asks for more than a document can.
func FuzzParse(f *testing.F) {
	f.Add(whole)
	f.Add("[sandbox]\nnetwork = 'off'")
	f.Add("[templates]\na = 'b/../c'")
	f.Fuzz(func(t *testing.T, text string) {
		m, err := Parse("m.toml", []byte(text))
		if err != nil {
			if m != nil || turnstone.KindOf(err) != turnstone.KindInvalid {
				t.Errorf("%q gives %v, %v", text, m, err)
			}
			return
		}
		front := m.Defaults.Front
		if front.Files != nil || front.Env != nil || front.Home != "" || front.Lifetime != "" ||
			front.Snapshot != "" || front.Cwd != "" {
			t.Errorf("%q sets %+v", text, front)
		}
		if r := front.NetworkRules; r != nil && (r.Replay || r.ReplayOf != "" ||
			r.HasAllow && len(r.Allow) == 0) {
			t.Errorf("%q has the rules %+v", text, r)
		}
		for name := range m.Templates {
			if at := m.TemplateOf(name); !filepath.IsLocal(at) {
				t.Errorf("%q names %q", text, at)
			}
		}
	})
}
