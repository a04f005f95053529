package machine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/wire"
)

func TestConfigureLayersAndHome(t *testing.T) {
	good := wire.SandboxConfigureParams{Entropy: make([]byte, 32),
		Time: time.Now().Format(time.RFC3339Nano), Hostname: "h",
		MachineID: strings.Repeat("0", 32), Scratch: "scratch", Layers: []string{"layer0"},
		Home: &wire.SandboxHomeDisk{Serial: "home", Path: "/root"}}
	if _, err := checkConfigure(&good); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*wire.SandboxConfigureParams){
		"too many layers": func(p *wire.SandboxConfigureParams) {
			p.Layers = make([]string, maxLayers+1)
		},
		"no serial": func(p *wire.SandboxConfigureParams) {
			p.Home = &wire.SandboxHomeDisk{Path: "/root"}
		},
		"a path in a serial": func(p *wire.SandboxConfigureParams) {
			p.Layers = []string{"../vda"}
		},
		"an empty layer": func(p *wire.SandboxConfigureParams) {
			p.Layers = []string{""}
		},
		"relative": func(p *wire.SandboxConfigureParams) {
			p.Home = &wire.SandboxHomeDisk{Serial: "home", Path: "root"}
		},
		"root": func(p *wire.SandboxConfigureParams) {
			p.Home = &wire.SandboxHomeDisk{Serial: "home", Path: "/x/.."}
		},
		"NUL": func(p *wire.SandboxConfigureParams) {
			p.Home = &wire.SandboxHomeDisk{Serial: "home", Path: "/a\x00b"}
		},
		"a path in a home's serial": func(p *wire.SandboxConfigureParams) {
			p.Home = &wire.SandboxHomeDisk{Serial: "a/b", Path: "/root"}
		},
	} {
		p := good
		change(&p)
		if _, err := checkConfigure(&p); turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestResemble checks that the agent's own directories look like those that they hide.
func TestResemble(t *testing.T) {
	top, low, upper := t.TempDir(), t.TempDir(), t.TempDir()
	when := time.Unix(1_500_000_000, 123_456_789)
	for dir, mode := range map[string]os.FileMode{filepath.Join(low, "etc"): 0o710,
		filepath.Join(upper, "etc"): 0o755} {
		if err := os.Mkdir(dir, mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(top, 0o1701); err != nil {
		t.Fatal(err)
	}
	xattrs := unix.Lsetxattr(top, "user.note", []byte("kept"), 0) == nil
	for _, dir := range []string{top, low, filepath.Join(low, "etc")} {
		if err := os.Chtimes(dir, when, when); err != nil {
			t.Fatal(err)
		}
	}
	if err := resemble(upper, []string{top, low}); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]string{upper: "drwx-----x",
		filepath.Join(upper, "etc"): "drwx--x---"} {
		fi, err := os.Lstat(dir)
		if err != nil || fi.Mode().Perm().String()[1:] != want[1:] || !fi.ModTime().Equal(when) {
			t.Errorf("%s: %v %v, %v", dir, fi.Mode(), fi.ModTime(), err)
		}
	}
	var value [16]byte
	if n, err := unix.Lgetxattr(upper, "user.note", value[:]); xattrs &&
		(err != nil || string(value[:n]) != "kept") {
		t.Errorf("the extended attribute: %q, %v", value[:max(0, n)], err)
	}
	// If a layer has another type of file in that place, the directory is new.
	if err := os.WriteFile(filepath.Join(top, "etc"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := resemble(upper, []string{top, low}); err != nil {
		t.Error(err)
	}
}
