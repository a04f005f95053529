package service

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/coreos/go-systemd/v22/unit"

	"turnstone.dev/turnstone/internal/cli/servecmd"
	"turnstone.dev/turnstone/internal/server/config"
)

const folder = "../../../packaging/systemd"

// units returns the options of each unit, by its file's name.
func units(t *testing.T) map[string][]*unit.UnitOption {
	t.Helper()
	all := map[string][]*unit.UnitOption{}
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".service") && !strings.HasSuffix(e.Name(), ".socket") {
			continue
		}
		f, err := os.Open(filepath.Join(folder, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		options, err := unit.DeserializeOptions(f)
		_ = f.Close()
		if err != nil {
			t.Fatalf("%s: %v", e.Name(), err)
		}
		all[e.Name()] = options
	}
	return all
}

func value(options []*unit.UnitOption, name string) string {
	i := slices.IndexFunc(options, func(o *unit.UnitOption) bool { return o.Name == name })
	if i < 0 {
		return ""
	}
	return options[i].Value
}

// TestUnits: the command lines are ones that turn accepts, and a service's settings agree with what
// the server does.
func TestUnits(t *testing.T) {
	all := units(t)
	if len(all) != 5 {
		t.Errorf("there are %d units", len(all))
	}
	users, err := os.ReadFile(filepath.Join(folder, "turnstone.sysusers.conf"))
	if err != nil {
		t.Fatal(err)
	}
	for name, options := range all {
		if strings.HasSuffix(name, ".socket") {
			if all[value(options, "Service")] == nil {
				t.Errorf("%s starts %s", name, value(options, "Service"))
			}
			if purpose := value(options, "FileDescriptorName"); purpose != "callers" {
				t.Errorf("%s is for %s", name, purpose)
			}
			continue
		}
		words := strings.Fields(value(options, "ExecStart"))
		if len(words) < 2 || words[0] != "/usr/bin/turn" || words[1] != "serve" {
			t.Errorf("%s runs %q", name, words)
			continue
		}
		var flags struct{ servecmd.Flags }
		p, err := kong.New(&flags)
		if err == nil {
			_, err = p.Parse(words[2:])
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		node := len(flags.Role) == 0 || slices.Contains(flags.Role, config.Node)
		// Sandboxes outlive a node's process.
		if node != (value(options, "KillMode") == "process") {
			t.Errorf("%s has KillMode=%s", name, value(options, "KillMode"))
		}
		user := value(options, "User")
		if value(options, "Type") != "notify" ||
			value(options, "Environment") != "TURN_HOME=/var/lib/"+value(options, "StateDirectory") ||
			!strings.Contains(string(users), "\nu "+user+" ") {
			t.Errorf("%s: the type, the state or the user is wrong", name)
		}
	}
}

// filters are settings that systemd implements by a filter of system calls, in part, and for which
// it sets NoNewPrivileges=yes where the service has a user: systemd.exec(5).
var filters = []string{"NoNewPrivileges", "DynamicUser", "LockPersonality",
	"MemoryDenyWriteExecute", "PrivateDevices", "ProtectClock", "ProtectHostname",
	"ProtectKernelLogs", "ProtectKernelModules", "ProtectKernelTunables",
	"RestrictAddressFamilies", "RestrictNamespaces", "RestrictRealtime", "RestrictSUIDSGID",
	"SystemCallArchitectures", "SystemCallFilter", "SystemCallLog"}

// TestNodesBuild: the services of nodes let newuidmap, which is setuid, have its rights. Without
// them no template is built.
func TestNodesBuild(t *testing.T) {
	all := units(t)
	for _, name := range []string{"turnstone.service", "turnstone-node.service"} {
		for _, filter := range filters {
			if v := value(all[name], filter); v != "" {
				t.Errorf("%s: %s=%s takes the rights of newuidmap", name, filter, v)
			}
		}
		bound := strings.Fields(value(all[name], "CapabilityBoundingSet"))
		for _, needed := range []string{"CAP_SETUID", "CAP_SETGID", "CAP_DAC_OVERRIDE",
			"CAP_SYS_ADMIN"} {
			if !slices.Contains(bound, needed) {
				t.Errorf("%s: newuidmap lacks %s", name, needed)
			}
		}
	}
}

// TestVerify: systemd accepts the units, and all are as restricted as they can be.
func TestVerify(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	var files []string
	for name := range units(t) {
		b, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			t.Fatal(err)
		}
		// The program need not be installed here.
		text := strings.ReplaceAll(string(b), "/usr/bin/turn ", "/bin/true ")
		files = append(files, filepath.Join(dir, name))
		if err := os.WriteFile(files[len(files)-1], []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.Command(analyze, append([]string{"verify", "--man=no"}, files...)...).
		CombinedOutput()
	if err != nil || len(out) > 0 {
		t.Errorf("%v: %s", err, out)
	}
	for name, most := range map[string]string{"turnstone-gateway.service": "20",
		"turnstone-controller.service": "20", "turnstone-node.service": "70",
		"turnstone.service": "70"} {
		out, err := exec.Command(analyze, "security", "--offline=true", "--threshold="+most,
			filepath.Join(dir, name)).CombinedOutput()
		var exit *exec.ExitError
		if errors.As(err, &exit) && strings.Contains(string(out), "Unknown") {
			t.Skip("this systemd-analyze cannot read a unit that is not installed")
		}
		if err != nil {
			t.Errorf("%s: %v: %s", name, err, out)
		}
	}
}
