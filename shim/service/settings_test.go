package service

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	bootapi "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/containerd/typeurl/v2"
)

// TestSettings checks that the node's settings hold unless its environment or the handler has
// others.
func TestSettings(t *testing.T) {
	home := t.TempDir()
	if err := os.WriteFile(filepath.Join(home, SettingsFile), []byte("cpus = 3\ndisk = 1000\n"+
		"substrate = \"qemu\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		env  map[string]string
		want string // the substrate, or a part of the error
		disk int64
	}{
		{nil, "qemu", 1000},
		{map[string]string{"TURN_SUBSTRATE": "gvisor"}, "gvisor", 1000},
		{map[string]string{"TURN_SUBSTRATE": "gvisor",
			optionsVar: "substrate = \"firecracker\"\ndisk = 5"}, "firecracker", 5},
		{map[string]string{optionsVar: "substrates = 1"}, "substrates is no setting", 0},
		{map[string]string{optionsVar: "substrate = \"docker\""}, "docker: is unknown", 0},
	} {
		s, err := Load(func(name string) string {
			if name == "TURN_HOME" {
				return home
			}
			return x.env[name]
		})
		if err != nil {
			if !strings.Contains(err.Error(), x.want) {
				t.Errorf("%v: %v", x.env, err)
			}
			continue
		}
		if s.Substrate != x.want || s.CPUs != 3 || int64(s.Disk) != x.disk ||
			s.bounds().Most.Disk != s.Disk { // no pod gets more unless max_disk says so
			t.Errorf("%v: %+v", x.env, s)
		}
	}
}

// TestHandlerOptions checks both forms of a handler's options.
func TestHandlerOptions(t *testing.T) {
	file := filepath.Join(t.TempDir(), "vm.toml")
	if err := os.WriteFile(file, []byte("of the file"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, o := range map[string]*runtimeoptions.Options{
		"itself":      {ConfigBody: []byte("itself")},
		"of the file": {ConfigPath: file, ConfigBody: []byte("itself")},
	} {
		packed, err := typeurl.MarshalAnyToProto(o) // as containerd does
		if err != nil {
			t.Fatal(err)
		}
		var p bootapi.BootstrapParams
		if err := p.AddExtension(packed); err != nil {
			t.Fatal(err)
		}
		if got, err := handlerOptions(&p); err != nil || got != want {
			t.Errorf("want %q: %q, %v", want, got, err)
		}
	}
	if got, err := handlerOptions(new(bootapi.BootstrapParams)); got != "" || err != nil {
		t.Errorf("no options: %q, %v", got, err)
	}
}
