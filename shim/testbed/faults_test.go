package testbed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// freeze stops the pod's sandbox, so that what is asked of it stays under way.
func (p *pod) freeze() {
	p.t.Helper()
	frozen := below(p.shimPID())
	if len(frozen) == 0 {
		p.t.Fatal("the shim has no machine")
	}
	for _, pid := range frozen {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil && !errors.Is(err, syscall.ESRCH) {
			p.t.Fatal(err)
		}
	}
}

// mounted waits until the root file system of a container is mounted.
func (b *Bed) mounted(t *testing.T, id string) {
	t.Helper()
	eventually(t, "a mount of the image", func() error {
		mounts, err := os.ReadFile("/proc/self/mountinfo")
		if err == nil && !strings.Contains(string(mounts), id+"/rootfs ") {
			err = errors.New("there is none")
		}
		return err
	})
}

// writeInto writes a file into the root file system of the container that was created last, before it starts.
func (b *Bed) writeInto(t *testing.T, name, text string) {
	t.Helper()
	all, err := filepath.Glob(b.path("root/io.containerd.snapshotter.v1.overlayfs/snapshots/*"))
	check(t, err)
	last := 0
	for _, dir := range all {
		n, err := strconv.Atoi(filepath.Base(dir))
		check(t, err)
		last = max(last, n)
	}
	check(t, os.WriteFile(b.path(fmt.Sprintf("root/io.containerd.snapshotter.v1.overlayfs/snapshots/%d/fs", last))+name,
		[]byte(text), 0o644))
}

// testDeaths checks that nothing is left of a shim that is killed while it copies an image, and
// that containerd, too, may be killed meanwhile, or while it starts a pod, a process or a container.
func testDeaths(t *testing.T, b *Bed) {
	p := b.pod(t, "deaths")
	id := p.run("main", nil, "sleep", "1000")
	late, err := p.create("late", nil, "sleep", "1000")
	check(t, err)
	b.writeInto(t, "/of-its-own", "text") // so its root file system is copied into the sandbox
	p.freeze()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 2)
	go func() { _, err := b.Crictl(ctx, "", "start", late); done <- err }()
	go func() { _, err := b.Crictl(ctx, "", "exec", "-s", id, "true"); done <- err }()
	b.mounted(t, late)
	b.Kill()
	for range 2 {
		if err := <-done; err == nil {
			t.Error("a call of a frozen sandbox succeeds")
		}
	}
	check(t, b.Start())
	check(t, syscall.Kill(p.shimPID(), syscall.SIGKILL))
	if code := p.await(id); code == 0 {
		t.Error("a container of a killed shim has succeeded")
	}
	_, err = b.Crictl(t.Context(), "", "rmp", "-f", p.id)
	check(t, err)
	b.nothingOf(t, p.id, late)

	config, err := b.JSON(podConfig(b, "begun", namespaces(nil)))
	check(t, err)
	go func() { _, err := b.Crictl(ctx, "", "runp", "--runtime", b.Handler, config); done <- err }()
	eventually(t, "a shim that containerd knows", func() error {
		known, err := filepath.Glob(b.path(
			"state/io.containerd.sandbox.controller.v1.shim/k8s.io/*/bootstrap.json"))
		if len(known) == 0 {
			err = errors.New("there is none")
		}
		return err
	})
	b.Kill()
	<-done // with an error, unless it was fast
	check(t, b.Start())
	_, err = b.Crictl(t.Context(), "", "rmp", "-fa")
	check(t, err)
	b.nothingOf(t, "")
}

// nothingOf waits until no process and mount is left that has one of the names.
func (b *Bed) nothingOf(t *testing.T, names ...string) {
	t.Helper()
	eventually(t, "an end of all processes and mounts", func() error {
		for _, line := range b.Left() {
			for _, name := range names {
				if strings.Contains(line, name) {
					return errors.New(line)
				}
			}
		}
		return nil
	})
}

// testHostile checks execs and containers whose directory, variables and users are hostile, and what
// a container may do to its root if it is read-only.
func testHostile(t *testing.T, b *Bed) {
	p := b.pod(t, "hostile-execs")
	id := p.run("main", func(c object) {
		c["linux"].(object)["security_context"].(object)["readonly_rootfs"] = true
		c["working_dir"] = "/../../tmp/.."
	}, "sh", "-c", "pwd; touch /x || echo read-only; sleep 1001")
	eventually(t, "the container's log", func() error {
		if out := p.logs(id); !strings.HasPrefix(out, "/\n") || !strings.HasSuffix(out, "read-only") {
			return fmt.Errorf("%q", out)
		}
		return nil
	})
	links := p.run("links", func(c object) {
		c["working_dir"] = "/tmp/out/../.."
		c["linux"].(object)["security_context"].(object)["run_as_user"] = object{"value": 2147483647}
		c["envs"] = []object{{"key": "BIG", "value": strings.Repeat("x", 120_000)},
			{"key": "LD_PRELOAD", "value": "/proc/1/root/evil"}, {"key": "STRANGE", "value": "\x1b[2J\n="}}
	}, "sh", "-c", "pwd; id -u; echo ${#BIG}; ls /; cat /.turnstone/c/*/config; echo done; sleep 1000")
	eventually(t, "the container's log", func() error {
		out := p.logs(links)
		if !strings.HasSuffix(out, "done") {
			return fmt.Errorf("%q", out)
		}
		if !strings.HasPrefix(out, "/\n2147483647\n120000\n") || strings.Contains(out, "args") {
			t.Errorf("%q", out)
		}
		return nil
	})
	// it sees the target's processes, but also the pod's others
	same := p.run("target", func(c object) {
		c["linux"] = object{"security_context": object{"namespace_options": object{"pid": 3,
			"target_id": id}}}
	}, "sh", "-c", "sleep 1000")
	if out := p.exec(same, "ps", "-o", "args"); !strings.Contains(out, "sleep 1001\n") {
		t.Errorf("the target's processes: %s", out)
	}
	_, err := b.Crictl(t.Context(), "", "rmp", "-f", p.id)
	check(t, err)
}

// testOOM checks that a container which takes more memory than it may is reported so. gVisor's kernel
// bounds only all containers together.
func testOOM(t *testing.T, b *Bed) {
	p := b.pod(t, "oom")
	id := p.run("main", func(c object) {
		c["linux"].(object)["resources"] = object{"memory_limit_in_bytes": 64 << 20}
	}, "awk", `BEGIN { s = "x"; while (1) s = s s }`)
	if code := p.await(id); code != 137 {
		t.Errorf("exit code %d", code)
	}
	out, err := b.Crictl(t.Context(), "", "inspect", id)
	check(t, err)
	if !strings.Contains(out, `"reason": "OOMKilled"`) {
		t.Errorf("its state: %s", out)
	}
	_, err = b.Crictl(t.Context(), "", "rmp", "-f", p.id)
	check(t, err)
}

func testRestart(t *testing.T, b *Bed) {
	p := b.pod(t, "restart")
	id := p.run("main", nil, "sh", "-c", "while true; do echo tick; sleep 0.2; done")
	before := p.run("ended", nil, "sh", "-c", "exit 5")
	if code := p.await(before); code != 5 {
		t.Errorf("exit code %d", code)
	}
	away := p.run("ends", nil, "sh", "-c", "nc -l -p 9000 </dev/null; exit 6")
	address := p.address() + ":9000"
	b.Kill()
	eventually(t, "a connection while containerd is away", func() error {
		c, err := net.Dial("tcp", address) //nolint:noctx // bounded by eventually
		if err == nil {
			err = c.Close()
		}
		return err
	})
	check(t, b.Start())
	for id, want := range map[string]int{before: 5, away: 6} {
		if code := p.await(id); code != want {
			t.Errorf("after the restart: exit code %d, want %d", code, want)
		}
	}
	if state, _, _ := p.status(id); state != "CONTAINER_RUNNING" {
		t.Errorf("after the restart: %s", state)
	}
	if out := p.exec(id, "echo", "still here"); out != "still here" {
		t.Errorf("exec after the restart: %q", out)
	}
	size := len(p.logs(id))
	eventually(t, "more of the log", func() error {
		if len(p.logs(id)) <= size {
			return errors.New("nothing new")
		}
		return nil
	})
	_, err := b.Crictl(t.Context(), "", "rmp", "-f", p.id)
	check(t, err)
}

func testKilled(t *testing.T, b *Bed) {
	p := b.pod(t, "killed")
	id := p.run("main", nil, "sleep", "1000")
	text, err := os.ReadFile(b.path("state/io.containerd.sandbox.controller.v1.shim/k8s.io/" +
		p.id + "/bootstrap.json"))
	check(t, err)
	var to struct{ Address string }
	check(t, json.Unmarshal(text, &to))
	check(t, syscall.Kill(p.shimPID(), syscall.SIGKILL))
	if code := p.await(id); code == 0 {
		t.Error("a container of a killed shim has succeeded")
	}
	eventually(t, "the pod's end", func() error {
		out, err := b.Crictl(t.Context(), "", "pods", "-q", "--id", p.id, "--state", "NotReady")
		if err == nil && out != p.id {
			err = errors.New("it is ready")
		}
		return err
	})
	_, err = b.Crictl(t.Context(), "", "rmp", "-f", p.id)
	check(t, err)
	if _, err := os.Stat(strings.TrimPrefix(to.Address, "unix://")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the shim's socket is left: %v", err)
	}
	eventually(t, "an end of all processes", func() error {
		for _, line := range b.Left() {
			if strings.Contains(line, p.id) {
				return errors.New(line)
			}
		}
		return nil
	})
}
