package main

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"go.yaml.in/yaml/v3"

	"turnstone.dev/turnstone/internal/template/debian"
	"turnstone.dev/turnstone/internal/testsize"
)

// mapped is the host's number of a pod's user 0, as a kubelet maps users of a pod with hostUsers: false.
const mapped = 1 << 20

// A pod is what of the DaemonSet in packaging/kubernetes decides about rights.
type pod struct {
	HostUsers  *bool `yaml:"hostUsers"`
	Containers []struct {
		SecurityContext struct {
			Privileged               bool
			RunAsUser                int  `yaml:"runAsUser"`
			ReadOnlyRootFilesystem   bool `yaml:"readOnlyRootFilesystem"`
			AllowPrivilegeEscalation bool `yaml:"allowPrivilegeEscalation"`
			Capabilities             struct{ Add, Drop []string }
		} `yaml:"securityContext"`
	}
}

// nodePod reads the pod of nodes from the manifests.
func nodePod(t *testing.T) pod {
	t.Helper()
	f, err := os.Open("../kubernetes/turnstone.yaml")
	check(t, err)
	defer f.Close()
	for d := yaml.NewDecoder(f); ; {
		var object struct {
			Kind string
			Spec struct{ Template struct{ Spec pod } }
		}
		err := d.Decode(&object)
		if errors.Is(err, io.EOF) {
			t.Fatal("no DaemonSet")
		}
		check(t, err)
		if object.Kind == "DaemonSet" {
			return object.Spec.Template.Spec
		}
	}
}

// TestNodeInAPod builds the image of a node and runs it with the rights that the manifests give to its
// pod, in a user namespace, under the profile in packaging/kubernetes: it builds a template, and a turn
// runs in gVisor.
func TestNodeInAPod(t *testing.T) {
	if testing.Short() || os.Geteuid() != 0 {
		t.Skip("needs root, and the network")
	}
	if !testsize.Full() {
		t.Skip("a full run builds the image's root, and in the pod a template")
	}
	if _, err := exec.LookPath("runc"); err != nil {
		t.Skip("no runc: scripts/setup tests installs it")
	}
	for _, p := range programs {
		if info, err := os.Stat(filepath.Join("../../bin", p)); err != nil || info.Size() == 0 {
			t.Skip("make build has not built " + p)
		}
	}
	dir := t.TempDir()
	for d := dir; d != "/" && d != os.TempDir(); d = filepath.Dir(d) {
		check(t, os.Chmod(d, 0o755)) // the pod's root is nobody here
	}
	image, closed, err := BuildNode(t.Context(), "../../bin", dir, debian.Mirrors{
		Main: os.Getenv("TURN_DEBIAN_MIRROR"), Security: os.Getenv("TURN_DEBIAN_SECURITY_MIRROR")}, nil)
	check(t, err)
	defer func() { check(t, closed()) }()
	root := filepath.Join(dir, "root")
	check(t, os.Mkdir(root, 0o755))
	unpackInto(t, root, image, mapped)
	check(t, os.WriteFile(filepath.Join(root, "root/doc.md"),
		[]byte("# In a pod\n\n```bash\necho \"$((40 + 2))\" > /workspace/answer; cat /workspace/answer\n```\n"), 0o644))
	state := filepath.Join(dir, "state")
	check(t, os.Mkdir(state, 0o755))
	check(t, os.Chown(state, mapped, mapped))
	runcBundle(t, dir, nodePod(t), "turn", "run", "/root/doc.md")
	id := "turnstone-test-" + filepath.Base(filepath.Dir(dir)) + "-" + filepath.Base(dir)
	cmd := exec.CommandContext(t.Context(), "runc", "--root", filepath.Join(dir, "runc"), "run", "--bundle", dir, id)
	cmd.Stdin = strings.NewReader("")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "result: passed") ||
		!strings.Contains(string(out), "isolation: gvisor") {
		t.Errorf("%v: %s", err, out)
	}
}

// runcBundle writes dir/config.json, as a kubelet and a runtime would for the pod.
func runcBundle(t *testing.T, dir string, p pod, args ...string) {
	t.Helper()
	security := p.Containers[0].SecurityContext
	if p.HostUsers == nil || *p.HostUsers || security.Privileged || !security.AllowPrivilegeEscalation ||
		!security.ReadOnlyRootFilesystem || strings.Join(security.Capabilities.Drop, "") != "ALL" {
		t.Fatalf("the test runs another pod than %+v", p)
	}
	make := exec.CommandContext(t.Context(), "runc", "spec", "--bundle", dir)
	if out, err := make.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	path := filepath.Join(dir, "config.json")
	text, err := os.ReadFile(path)
	check(t, err)
	profile, err := os.ReadFile("../kubernetes/seccomp.json")
	check(t, err)
	var spec map[string]any
	check(t, json.Unmarshal(text, &spec))
	var caps []string
	for _, c := range security.Capabilities.Add {
		caps = append(caps, "CAP_"+c)
	}
	spec["process"] = map[string]any{
		"user": map[string]int{"uid": security.RunAsUser}, "args": args, "cwd": "/",
		"env":          []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "TURN_HOME=" + home + "/home"},
		"capabilities": map[string]any{"bounding": caps, "effective": caps, "permitted": caps},
	}
	spec["root"] = map[string]any{"path": "root", "readonly": security.ReadOnlyRootFilesystem}
	spec["mounts"] = append(mounts(spec["mounts"].([]any)),
		map[string]any{"destination": "/sys", "type": "bind", "source": "/sys",
			"options": []string{"rbind", "ro", "nosuid", "noexec", "nodev"}},
		map[string]any{"destination": "/tmp", "type": "tmpfs", "source": "tmpfs",
			"options": []string{"nosuid", "nodev", "mode=1777"}},
		map[string]any{"destination": home, "type": "bind", "source": filepath.Join(dir, "state"),
			"options": []string{"rbind", "rw"}},
		map[string]any{"destination": "/etc/resolv.conf", "type": "bind", "source": "/etc/resolv.conf",
			"options": []string{"bind", "ro"}})
	ids := []map[string]int{{"containerID": 0, "hostID": mapped, "size": 1 << 16}}
	linux := spec["linux"].(map[string]any)
	linux["namespaces"] = []map[string]string{{"type": "pid"}, {"type": "ipc"}, {"type": "uts"},
		{"type": "mount"}, {"type": "user"}} // the network is the host's, which reaches Debian
	linux["uidMappings"], linux["gidMappings"] = ids, ids
	linux["seccomp"] = json.RawMessage(profile)
	text, err = json.Marshal(spec)
	check(t, err)
	check(t, os.WriteFile(path, text, 0o644))
}

// mounts keeps what a pod without a network namespace of its own can mount.
func mounts(all []any) (kept []any) {
	for _, m := range all {
		if to := m.(map[string]any)["destination"]; to != "/sys" && to != "/sys/fs/cgroup" {
			kept = append(kept, m)
		}
	}
	return kept
}

// unpackInto unpacks the image's files for the users of a pod whose user 0 is owner.
func unpackInto(t *testing.T, root string, image v1.Image, owner int) {
	t.Helper()
	r := mutate.Extract(image)
	defer func() { _ = r.Close() }()
	cmd := exec.CommandContext(t.Context(), "tar", "-x", "-p", "--numeric-owner", "-C", root)
	in, err := cmd.StdinPipe()
	check(t, err)
	var said strings.Builder
	cmd.Stderr = &said
	check(t, cmd.Start())
	files, out := tar.NewReader(r), tar.NewWriter(in)
	for {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		check(t, err)
		h.Uid, h.Gid, h.Format = h.Uid+owner, h.Gid+owner, tar.FormatUnknown
		check(t, out.WriteHeader(h))
		_, err = io.Copy(out, files)
		check(t, err)
	}
	check(t, out.Close())
	check(t, in.Close())
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v: %s", err, said.String())
	}
	check(t, os.Chown(root, owner, owner))
}
