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
		{map[string]string{"TURN_SUBSTRATE": "gvisor", optionsVar: "TypeUrl = \"x\"\ndisk = 6"}, "gvisor", 6},
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

// TestHandlerOptions checks all forms of a handler's options.
func TestHandlerOptions(t *testing.T) {
	const program = "/usr/local/bin/containerd-shim-turnstone-v2"
	const named = "/usr/local/bin/containerd-shim-turnstone-a-vm-v2"
	home := t.TempDir()
	file := filepath.Join(home, "vm.toml")
	for name, text := range map[string]string{file: "of the file", filepath.Join(home, "shim-a-vm.toml"): "of the name"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, x := range []struct {
		program string
		options *runtimeoptions.Options
		want    string // empty: an error
	}{
		{program, &runtimeoptions.Options{ConfigBody: []byte("itself")}, "itself"},
		{program, &runtimeoptions.Options{ConfigPath: file, ConfigBody: []byte("itself")}, "of the file"},
		{program, &runtimeoptions.Options{ConfigPath: file + ".not"}, ""},
		{named, nil, "of the name"},
		{named, &runtimeoptions.Options{ConfigBody: []byte("itself")}, "itself"},
		{"/usr/local/bin/containerd-shim-turnstone-other-v2", nil, ""},
	} {
		var p bootapi.BootstrapParams
		if x.options != nil {
			packed, err := typeurl.MarshalAnyToProto(x.options) // as containerd does
			if err == nil {
				err = p.AddExtension(packed)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if got, err := handlerOptions(&p, x.program, home); got != x.want || (err == nil) != (x.want != "") {
			t.Errorf("%s, %v: %q, %v", x.program, x.options, got, err)
		}
	}
	for _, name := range []string{program, "containerd-shim-runc-v2", "/x/shim", ""} {
		if got, err := handlerOptions(new(bootapi.BootstrapParams), name, home); got != "" || err != nil {
			t.Errorf("no options of %s: %q, %v", name, got, err)
		}
	}
}
