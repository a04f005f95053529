package testbed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"turnstone.dev/turnstone/internal/testhome"
)

// limit bounds a wait for what has to happen.
const limit = 3 * time.Minute

// bed starts a containerd for the test; what is left of its pods at the end fails the test.
func bed(t *testing.T) *Bed {
	t.Helper()
	return bedOf(t, Release{})
}

// bedOf is bed with a containerd of a release.
func bedOf(t *testing.T, r Release) *Bed {
	t.Helper()
	return bedWith(t, r, func(*Options) {})
}

// bedWith is bedOf with options that change changes.
func bedWith(t testing.TB, r Release, change func(o *Options)) *Bed {
	t.Helper()
	home := testhome.Dir(t)
	if os.Geteuid() != 0 {
		t.Skip("containerd needs root")
	}
	tools, err := Tools(t.Context(), home, "tools")
	if errors.Is(err, exec.ErrNotFound) {
		t.Skip("the go command, which builds containerd, is not in PATH")
	}
	check(t, err)
	if r.Version != "" {
		tools, err = r.Tools(t.Context(), home, tools)
		check(t, err)
	}
	bin, err := filepath.Abs("../../bin")
	check(t, err)
	shim := filepath.Join(bin, "containerd-shim-turnstone-v2")
	if _, err := os.Stat(shim); err != nil {
		t.Fatalf("%v: run make shim", err)
	}
	dir, err := os.MkdirTemp("", "cri") // short: it has sockets
	check(t, err)
	o := Options{Dir: dir, Tools: tools, Release: r.Version, Shim: shim, Runsc: filepath.Join(bin, "runsc"),
		Home: filepath.Join(dir, "home"), Kernel: os.Getenv("TEST_KERNEL")}
	change(&o)
	b, err := New(o)
	check(t, err)
	t.Cleanup(func() {
		for _, what := range b.Close() {
			t.Errorf("left: %s", what)
		}
		if t.Failed() {
			t.Logf("containerd's log:\n%s", b.Log())
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return b
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

type object = map[string]any

// podConfig returns the configuration of a pod.
func podConfig(b *Bed, name string, linux object) object {
	return object{"metadata": object{"name": name, "namespace": "test", "uid": name, "attempt": 1},
		"hostname": "a-pod", "log_directory": b.path("logs"),
		"dns_config": object{"servers": []string{"10.1.2.3"}, "searches": []string{"test.local"}},
		"linux":      linux}
}

// namespaces are those of a pod whose containers have PID namespaces of their own.
func namespaces(more object) object {
	all := object{"pid": 1}
	for k, v := range more {
		all[k] = v
	}
	return object{"security_context": object{"namespace_options": all}}
}

// A pod is a running pod.
type pod struct {
	t        *testing.T
	b        *Bed
	name, id string
	config   string
}

func (b *Bed) pod(t *testing.T, name string) *pod {
	t.Helper()
	config, err := b.JSON(podConfig(b, name, namespaces(nil)))
	check(t, err)
	id, err := b.Crictl(t.Context(), "", "runp", "--runtime", b.Handler, config)
	check(t, err)
	return &pod{t: t, b: b, name: name, id: id, config: config}
}

// create creates a container; change may change its configuration.
func (p *pod) create(name string, change func(object), command ...string) (string, error) {
	c := object{"metadata": object{"name": name}, "log_path": p.name + "-" + name + ".log",
		"image": object{"image": p.b.Registry.Host + "/busybox:1"}, "command": command,
		"linux": namespaces(nil)}
	if change != nil {
		change(c)
	}
	config, err := p.b.JSON(c)
	check(p.t, err)
	return p.b.Crictl(p.t.Context(), "", "create", "--with-pull", p.id, config, p.config)
}

// run creates and starts a container.
func (p *pod) run(name string, change func(object), command ...string) string {
	p.t.Helper()
	id, err := p.create(name, change, command...)
	check(p.t, err)
	_, err = p.b.Crictl(p.t.Context(), "", "start", id)
	check(p.t, err)
	return id
}

// exec runs a command in a container.
func (p *pod) exec(id string, command ...string) string {
	p.t.Helper()
	out, err := p.b.Crictl(p.t.Context(), "", append([]string{"exec", id}, command...)...)
	check(p.t, err)
	return out
}

// status returns a field of a container's state.
func (p *pod) status(id string) (state string, code int, message string) {
	p.t.Helper()
	out, err := p.b.Crictl(p.t.Context(), "", "inspect", id)
	check(p.t, err)
	var v struct {
		Status struct {
			State    string
			ExitCode int
			Message  string
		}
	}
	check(p.t, json.Unmarshal([]byte(out), &v))
	return v.Status.State, v.Status.ExitCode, v.Status.Message
}

// await waits until a container has ended, and returns its exit code.
func (p *pod) await(id string) (code int) {
	p.t.Helper()
	eventually(p.t, "the end of a container", func() error {
		state, c, _ := p.status(id)
		if code = c; state != "CONTAINER_EXITED" {
			return errors.New(state)
		}
		return nil
	})
	return code
}

// unquoted returns the text of an error without the quotation marks of its way.
func unquoted(err error) string { return strings.ReplaceAll(err.Error(), `\`, "") }

// eventually waits until f returns nil.
func eventually(t *testing.T, what string, f func() error) {
	t.Helper()
	var err error
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if err = f(); err == nil {
			return
		}
	}
	t.Fatalf("%s: %v", what, err)
}

func (p *pod) logs(id string) string {
	p.t.Helper()
	out, err := p.b.Crictl(p.t.Context(), "", "logs", id)
	check(p.t, err)
	return out
}

func (p *pod) address() string {
	p.t.Helper()
	out, err := p.b.Crictl(p.t.Context(), "", "inspectp", p.id)
	check(p.t, err)
	var v struct {
		Status struct{ Network struct{ IP string } }
	}
	check(p.t, json.Unmarshal([]byte(out), &v))
	return v.Status.Network.IP
}

// shimPID returns the process of the pod's shim.
func (p *pod) shimPID() int {
	p.t.Helper()
	for _, line := range p.b.Left() {
		if strings.Contains(line, "containerd-shim-turnstone-v2") && strings.Contains(line, p.id) {
			var pid int
			_, err := fmt.Sscanf(line, "%d:", &pid)
			check(p.t, err)
			return pid
		}
	}
	p.t.Fatal("the pod has no shim")
	return 0
}

// TestPods runs pods by crictl, as a kubelet does by the same interface.
func TestPods(t *testing.T) {
	b := bed(t)
	testSubstrate(t, b)
	t.Run("without a pod", func(t *testing.T) { testLone(t, b) })
	t.Run("images", func(t *testing.T) { testImages(t, b) })
	t.Run("hostile image", func(t *testing.T) { testHostileImage(t, b) })
	t.Run("many execs", func(t *testing.T) { testExecs(t, b) })
	t.Run("hostile execs", func(t *testing.T) { testHostile(t, b) })
	t.Run("deaths", func(t *testing.T) { testDeaths(t, b) })
	t.Run("refusals", func(t *testing.T) { testRefusals(t, b) })
	t.Run("containerd restarts", func(t *testing.T) { testRestart(t, b) })
	t.Run("killed shim", func(t *testing.T) { testKilled(t, b) })
	testBeside(t, b)
	for _, h := range Handlers[1:] {
		t.Run(h, func(t *testing.T) { testMicroVM(t, b, h) })
	}
}

// testMicroVM runs pods in microVMs under KVM, with a kernel made for tests.
func testMicroVM(t *testing.T, b *Bed, handler string) {
	program := map[string]string{"turnstone-qemu": "qemu-system-x86_64",
		"turnstone-firecracker": "firecracker"}[handler]
	if _, err := exec.LookPath(program); err != nil {
		t.Skip(err)
	}
	if b.options.Kernel == "" {
		t.Skip("no kernel for tests (TEST_KERNEL)")
	}
	if _, err := os.Stat("/dev/kvm"); err != nil {
		t.Skip(err)
	}
	// the pods of another handler have the same names, logs and volumes
	_, err := b.Crictl(t.Context(), "", "rmp", "-fa")
	check(t, err)
	check(t, errors.Join(os.RemoveAll(b.path("pods")), os.RemoveAll(b.path("logs")),
		os.Mkdir(b.path("logs"), 0o755)))
	b.Handler = handler
	defer func() { b.Handler = Handlers[0] }()
	testSubstrate(t, b)
	t.Run("out of memory", func(t *testing.T) { testOOM(t, b) })
	t.Run("killed shim", func(t *testing.T) { testKilled(t, b) })
	testBeside(t, b)
}

// testSubstrate runs what every substrate has.
func testSubstrate(t *testing.T, b *Bed) {
	t.Run("container", func(t *testing.T) { testContainer(t, b) })
	t.Run("terminal", func(t *testing.T) { testTerminal(t, b) })
	t.Run("network", func(t *testing.T) { testNetwork(t, b) })
	t.Run("volumes", func(t *testing.T) { testVolumes(t, b) })
}

func testContainer(t *testing.T, b *Bed) {
	p := b.pod(t, "container")
	id := p.run("main", func(c object) {
		c["envs"] = []object{{"key": "GIVEN", "value": "to the container"}}
		c["working_dir"] = "/made/for/it"
	}, "sh", "-c", `trap "echo asked to end; exit 3" TERM
		echo "$GIVEN, $FROM_IMAGE, $(pwd), $(hostname)"; echo to stderr >&2
		cat /etc/resolv.conf; while true; do sleep 0.1; done`)
	eventually(t, "the container's log", func() error {
		if out := p.logs(id); !strings.Contains(out, "nameserver 10.1.2.3") {
			return errors.New(out)
		}
		return nil
	})
	if out := p.logs(id); !strings.HasPrefix(out, "to the container, yes, /made/for/it, a-pod\n") ||
		!strings.Contains(out, "search test.local\n") {
		t.Errorf("its log: %q", out)
	}
	if out := p.exec(id, "sh", "-c", "echo $GIVEN; ps | grep -c 'sh -c trap'"); !strings.HasPrefix(
		out, "to the container\n") {
		t.Errorf("exec: %q", out)
	}
	if _, err := b.Crictl(t.Context(), "", "exec", id, "sh", "-c", "exit 7"); err == nil ||
		!strings.Contains(err.Error(), "exit code 7") {
		t.Errorf("an exec that fails: %v", err)
	}
	if _, err := b.Crictl(t.Context(), "", "exec", id, "nothing"); err == nil ||
		!strings.Contains(unquoted(err), `"nothing": executable file not found`) {
		t.Errorf("an exec of no program: %v", err)
	}
	out, err := b.Crictl(t.Context(), "by standard input", "exec", "-i", id, "cat")
	if err != nil || out != "by standard input" {
		t.Errorf("exec -i: %q, %v", out, err)
	}
	if out, err = b.Crictl(t.Context(), "", "stats", "-o", "json", id); err != nil ||
		!strings.Contains(out, `"usageCoreNanoSeconds"`) {
		t.Errorf("stats: %v\n%s", err, out)
	}
	_, err = b.Crictl(t.Context(), "", "stop", "--timeout", "60", id)
	check(t, err)
	if state, code, _ := p.status(id); state != "CONTAINER_EXITED" || code != 3 {
		t.Errorf("stopped: %s, exit code %d", state, code)
	}
	if out := p.logs(id); !strings.HasSuffix(out, "asked to end") {
		t.Errorf("its log at the end: %q", out)
	}
	if code := p.await(p.run("other", nil, "sh", "-c", "exit 4")); code != 4 {
		t.Errorf("exit code %d", code)
	}
	_, err = b.Crictl(t.Context(), "", "rmp", "-f", p.id)
	check(t, err)
}

func testTerminal(t *testing.T, b *Bed) {
	p := b.pod(t, "terminal")
	id := p.run("main", func(c object) { c["tty"], c["stdin"] = true, true }, "sh", "-c",
		"test -t 0 && stty size; sleep 1000")
	eventually(t, "the terminal's size", func() error {
		if out := p.logs(id); strings.TrimSpace(out) != "24 80" {
			return fmt.Errorf("%q", out)
		}
		return nil
	})
	attached := exec.CommandContext(t.Context(), "script", "-qec",
		filepath.Join(b.options.Tools, "crictl")+" -c "+b.path("crictl.yaml")+" exec -it "+id+
			" sh -c 'test -t 0 && echo on a terminal'", "/dev/null")
	in, err := attached.StdinPipe() // its end would end the terminal
	check(t, err)
	defer in.Close()
	out, err := attached.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "on a terminal") {
		t.Errorf("exec -it: %v\n%s", err, out)
	}
}

func testNetwork(t *testing.T, b *Bed) {
	p := b.pod(t, "network")
	id := p.run("web", nil, "httpd", "-f", "-p", "8080", "-h", "/www")
	get := func(url string) error {
		res, err := http.Get(url) //nolint:noctx // bounded by eventually
		if err != nil {
			return err
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		if err == nil && string(text) != "served from a pod\n" {
			err = fmt.Errorf("%q", text)
		}
		return err
	}
	eventually(t, "a connection to the pod", func() error {
		return get("http://" + p.address() + ":8080/index.html")
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	forward := exec.CommandContext(ctx, filepath.Join(b.options.Tools, "crictl"), "-c",
		b.path("crictl.yaml"), "port-forward", p.id, ":8080")
	out, err := forward.StdoutPipe()
	check(t, err)
	check(t, forward.Start())
	defer func() { cancel(); _ = forward.Wait() }()
	var port int
	_, err = fmt.Fscanf(out, "Forwarding from 127.0.0.1:%d", &port)
	check(t, err)
	go func() { _, _ = io.Copy(io.Discard, out) }()
	check(t, get(fmt.Sprintf("http://127.0.0.1:%d/index.html", port)))
	if out := p.exec(id, "wget", "-qO-", "http://127.0.0.1:8080/index.html"); out !=
		"served from a pod" {
		t.Errorf("inside: %q", out)
	}
}

func testVolumes(t *testing.T, b *Bed) {
	// what a kubelet makes for a pod
	kubelet := b.path("pods/volumes")
	config := filepath.Join(kubelet, "volumes/kubernetes.io~configmap/settings")
	empty := filepath.Join(kubelet, "volumes/kubernetes.io~empty-dir/scratch")
	message := filepath.Join(kubelet, "containers/main/1234")
	for _, dir := range []string{config + "/..1", config + "/..2", empty, filepath.Dir(message)} {
		check(t, os.MkdirAll(dir, 0o755))
	}
	check(t, os.WriteFile(config+"/..1/key", []byte("first"), 0o644))
	check(t, os.WriteFile(config+"/..2/key", []byte("second"), 0o644))
	check(t, os.Symlink("..1", config+"/..data"))
	check(t, os.Symlink("..data/key", config+"/key"))
	check(t, os.WriteFile(message, nil, 0o644))
	part := b.subPath(t, "volumes", "scratch", "a/part")
	p := b.pod(t, "volumes")
	mounts := func(c object) {
		c["mounts"] = []object{
			{"container_path": "/config", "host_path": config, "readonly": true},
			{"container_path": "/scratch", "host_path": empty},
			{"container_path": "/dev/termination-log", "host_path": message},
			{"container_path": "/part", "host_path": part}}
	}
	writer := p.run("writer", mounts, "sh", "-c", "cat /config/key; echo shared > /scratch/file; echo in part > /part/file;"+
		"echo last words > /dev/termination-log; touch /config/x && exit 9; exit 5")
	if code := p.await(writer); code != 5 {
		t.Errorf("exit code %d; its log: %s", code, p.logs(writer))
	}
	if out := p.logs(writer); !strings.HasPrefix(out, "first") {
		t.Errorf("its log: %q", out)
	}
	if text, err := os.ReadFile(message); err != nil || string(text) != "last words\n" {
		t.Errorf("the termination message: %q, %v", text, err)
	}
	if left, _ := os.ReadDir(empty); len(left) != 1 { // the subPath
		t.Errorf("the host has %v of an emptyDir", left)
	}
	reader := p.run("reader", func(c object) {
		mounts(c)
		c["mounts"] = c["mounts"].([]object)[:2]
	}, "sleep", "1000")
	if out := p.exec(reader, "cat", "/scratch/a/part/file", "/scratch/file"); out !=
		"in part\nshared" {
		t.Errorf("of another container: %q", out)
	}
	check(t, os.Symlink("..2", config+"/..new"))
	check(t, os.Rename(config+"/..new", config+"/..data"))
	eventually(t, "the new settings", func() error {
		if out := p.exec(reader, "cat", "/config/key"); out != "second" {
			return errors.New(out)
		}
		return nil
	})
}

// subPath mounts the folder sub of an emptyDir as the kubelet does, and returns where.
func (b *Bed) subPath(t *testing.T, pod, volume, sub string) string {
	t.Helper()
	dir := filepath.Join(b.path("pods"), pod)
	from := filepath.Join(dir, "volumes/kubernetes.io~empty-dir", volume, sub)
	to := filepath.Join(dir, "volume-subpaths", volume, "main/0")
	check(t, errors.Join(os.MkdirAll(from, 0o777), os.MkdirAll(to, 0o755)))
	check(t, syscall.Mount(from, to, "", syscall.MS_BIND, ""))
	t.Cleanup(func() {
		if err := syscall.Unmount(to, 0); err != nil {
			t.Error(err)
		}
	})
	return to
}

func testRefusals(t *testing.T, b *Bed) {
	for _, x := range []struct {
		linux object
		want  string
	}{
		{namespaces(object{"network": 2}), "hostNetwork: the host's network"},
		{namespaces(object{"pid": 2}), "hostPID: "},
		{namespaces(object{"ipc": 2}), "hostIPC: "},
		{namespaces(object{"userns_options": object{"uids": []object{{"host_id": 100000, "length": 1}},
			"gids": []object{{"host_id": 100000, "length": 1}}}}), "hostUsers: "},
		{object{"security_context": object{"privileged": true}}, "securityContext.privileged: "},
		{object{"resources": object{"memory_limit_in_bytes": 1 << 50}}, "resources.limits.memory: "},
		{object{"sysctls": object{"net/../../x": "1"}}, "linux.sysctl: "},
	} {
		if strings.HasPrefix(x.want, "hostNetwork") && b.before("v2.3.") {
			continue // containerd itself ends by it: see docs/shim.md
		}
		config, err := b.JSON(podConfig(b, "refused", x.linux))
		check(t, err)
		if _, err := b.Crictl(t.Context(), "", "runp", config); err == nil ||
			!strings.Contains(err.Error(), x.want) {
			t.Errorf("want %s: %v", x.want, err)
		}
	}
	p := b.pod(t, "refusals")
	for want, change := range map[string]func(object){
		`process.capabilities: "CAP_SYS_ADMIN"`: func(c object) {
			c["linux"].(object)["security_context"].(object)["capabilities"] =
				object{"add_capabilities": []string{"SYS_ADMIN"}}
		},
		`mounts: "/host": a writable folder of the host`: func(c object) {
			c["mounts"] = []object{{"container_path": "/host", "host_path": b.path("logs")}}
		},
		`linux.devices: a device of the host: "/dev/kmsg"`: func(c object) {
			c["devices"] = []object{{"container_path": "/dev/kmsg", "host_path": "/dev/kmsg",
				"permissions": "r"}}
		},
	} {
		id, err := p.create("refused", change, "true")
		if err == nil {
			_, err = b.Crictl(t.Context(), "", "start", id)
		}
		if err == nil || !strings.Contains(unquoted(err), want) {
			t.Errorf("want %s: %v", want, err)
		}
		_, err = b.Crictl(t.Context(), "", "rm", "-f", id)
		check(t, err)
	}
}
