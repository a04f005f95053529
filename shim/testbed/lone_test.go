package testbed

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// ctr runs containerd's command in a namespace of its own.
func (b *Bed) ctr(t *testing.T, stdin string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	return b.Tool(ctx, stdin, "ctr", append([]string{"-a", b.path("c.sock"), "-n", "lone"}, args...)...)
}

// loneRun runs a container without a pod; args are flags and the container's name and command, with
// IMAGE for the image.
func (b *Bed) loneRun(t *testing.T, stdin string, args ...string) (string, error) {
	t.Helper()
	all := []string{"run", "--runtime", "io.containerd.turnstone.v2"}
	for _, a := range args {
		if a == "IMAGE" {
			a = b.Registry.Host + "/busybox:1"
		}
		all = append(all, a)
	}
	return b.ctr(t, stdin, all...)
}

// task returns the state and the process of a task.
func (b *Bed) task(t *testing.T, name string) (state string, pid int) {
	t.Helper()
	out, err := b.ctr(t, "", "task", "ls")
	check(t, err)
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == name {
			_, err := fmt.Sscan(f[1], &pid)
			check(t, err)
			return f[2], pid
		}
	}
	return "", 0
}

// leftOf returns the processes and mounts that are left, but for the process pid.
func (b *Bed) leftOf(pid int) error {
	if left := slices.DeleteFunc(b.Left(), func(line string) bool {
		return pid != 0 && strings.HasPrefix(line, fmt.Sprintf("%d:", pid))
	}); len(left) > 0 {
		return errors.New(strings.Join(left, "\n"))
	}
	return nil
}

// testLone runs containers without pods by ctr.
func testLone(t *testing.T, b *Bed) {
	_, err := b.Crictl(t.Context(), "", "rmp", "-fa") // so that what is left is a container's
	check(t, err)
	eventually(t, "the end of all pods", func() error { return b.leftOf(0) })
	_, err = b.ctr(t, "", "image", "pull", "--plain-http", b.Registry.Host+"/busybox:1")
	check(t, err)
	out, err := b.loneRun(t, "by standard input\n", "--rm", "--memory-limit", "134217728", "--hostname", "alone",
		"IMAGE", "one", "sh", "-c", "cat; echo $FROM_IMAGE $(hostname) $(id -u) $$; exit 5")
	if err == nil || !strings.Contains(err.Error(), "exit status 5") ||
		out != "by standard input\nyes alone 0 1\n" {
		t.Errorf("ctr run: %q, %v", out, err)
	}
	eventually(t, "the end of its sandbox", func() error { return b.leftOf(0) })
	t.Run("background", func(t *testing.T) { testLoneBackground(t, b) })
	t.Run("killed shim", func(t *testing.T) { testLoneKilled(t, b) })
	for want, args := range map[string][]string{
		"linux.namespaces: the host's namespace (network)": {"--net-host"},
		"the host's namespace (network)": {"--with-ns",
			fmt.Sprintf("network:/proc/%d/ns/net", b.cmd.Process.Pid)},
		"process.capabilities": {"--privileged"},
		"linux.devices":        {"--device", "/dev/fuse"},
		"a writable folder of the host": {"--mount",
			"type=bind,src=/srv,dst=/srv,options=rbind:rw"},
	} {
		_, err := b.loneRun(t, "", append(args, "--rm", "IMAGE", "refused", "true")...)
		if err == nil || !strings.Contains(unquoted(err), want) {
			t.Errorf("want %q: %v", want, err)
		}
	}
	eventually(t, "nothing of what was refused", func() error { return b.leftOf(0) })
}

// testLoneBackground checks the commands for a container that runs.
func testLoneBackground(t *testing.T, b *Bed) {
	_, err := b.loneRun(t, "", "-d", "IMAGE", "two", "sh", "-c",
		"trap 'exit' TERM; while true; do sleep 0.1; done")
	check(t, err)
	out, err := b.ctr(t, "in\n", "task", "exec", "--exec-id", "e", "two", "sh", "-c",
		"cat; cat /proc/1/cmdline | grep -c trap; exit 7")
	if err == nil || !strings.Contains(err.Error(), "exit status 7") || out != "in\n1\n" {
		t.Errorf("exec: %q, %v", out, err)
	}
	state, pid := b.task(t, "two")
	if state != "RUNNING" || pid == 0 {
		t.Errorf("it is %s, process %d", state, pid)
	}
	if out, err := b.ctr(t, "", "task", "metrics", "two"); err != nil || !strings.Contains(out, "two") {
		t.Errorf("metrics: %q, %v", out, err)
	}
	if _, err := b.ctr(t, "", "task", "pause", "two"); err == nil ||
		!strings.Contains(err.Error(), "not implemented") {
		t.Errorf("pause: %v", err)
	}
	_, err = b.ctr(t, "", "task", "kill", "-s", "TERM", "two")
	check(t, err)
	eventually(t, "its end", func() error {
		if state, _ := b.task(t, "two"); state != "STOPPED" {
			return errors.New(state)
		}
		return b.leftOf(pid) // only the shim is left, which knows the exit code
	})
	_, err = b.ctr(t, "", "task", "delete", "two")
	check(t, err)
	_, err = b.ctr(t, "", "container", "delete", "two")
	check(t, err)
	eventually(t, "the end of the shim", func() error { return b.leftOf(0) })
}

// testLoneKilled checks that nothing is left of a container whose shim is killed.
func testLoneKilled(t *testing.T, b *Bed) {
	_, err := b.loneRun(t, "", "-d", "IMAGE", "three", "sleep", "100000")
	check(t, err)
	_, shim := b.task(t, "three")
	check(t, syscall.Kill(shim, syscall.SIGKILL))
	eventually(t, "the end of all", func() error {
		if state, _ := b.task(t, "three"); state == "RUNNING" {
			return errors.New(state)
		}
		return b.leftOf(0)
	})
	_, err = b.ctr(t, "", "container", "delete", "three")
	check(t, err)
}
