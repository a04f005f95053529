package testbed

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// users are forms of USER of an image, and what a process of it has: its numbers, all its groups, and the
// variables of its account (docs/users.md). The numbers are containerd's choice, as for any runtime.
var users = []struct{ form, want string }{
	{"", "0:0 (0) /root root root /bin/sh"},
	{"www-data", "33:33 (33) /www www-data www-data /bin/sh"},
	{"1000", "1000:1000 (1000 50000) /tmp default-user default-user /bin/sh"},
	{"4321", "4321:0 (0) / - - /bin/sh"},
	{"default-user:www-data", "1000:33 (33 50000) /tmp default-user default-user /bin/sh"},
	{"4321:33", "4321:33 (33) / - - /bin/sh"},
}

// who prints what users says, the directory and its owner, and a line to each standard stream by its name.
const who = `set -e; echo "$(id -u):$(id -g) ($(id -G)) $HOME ${USER:--} ${LOGNAME:--} $SHELL in $PWD of $(stat -c %u:%g .)"
	touch made; echo out > /dev/stdout; echo err > /dev/stderr`

// checkWho compares what who has printed to standard output, perhaps with lines of standard error.
func checkWho(t *testing.T, what, got, want string) {
	t.Helper()
	numbers, _, _ := strings.Cut(want, " ")
	lines := strings.Split(strings.TrimSpace(got), "\n")
	lines = slices.DeleteFunc(lines, func(l string) bool { return l == "err" })
	if got := strings.Join(lines, "\n"); got != want+" in /made/for/it of "+numbers+"\nout" {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}

// testUsers checks who the processes of images are, what they can open, and whose a directory is that the
// image lacks: of containers, and of execs in them.
func testUsers(t *testing.T, b *Bed) {
	p := b.pod(t, "users")
	for i, u := range users {
		if b.Handler != Handlers[0] && i != 1 {
			continue // a microVM takes longer, and does the same
		}
		name := fmt.Sprintf("user%d", i)
		image := b.Registry.Host + "/" + name + ":1"
		check(t, b.Registry.Push(name+":1", v1.Config{User: u.form, WorkingDir: "/made/for/it",
			Env: []string{"PATH=/bin"}}, nil, nil))
		id := p.run(name, func(c object) { c["image"] = object{"image": image} }, "sh", "-c", who+"; echo err; sleep 1000")
		checkWho(t, "a container of "+u.form, p.ready(name), u.want)
		checkWho(t, "an exec of "+u.form, p.exec(id, "sh", "-c", who), u.want)
		if b.Handler != Handlers[0] || i > 0 && u.want[0] != '4' {
			continue // each takes a sandbox
		}
		_, err := b.ctr(t, "", "image", "pull", "--plain-http", image)
		check(t, err)
		_, err = b.ctr(t, "", "run", "-d", "--runtime", "io.containerd.turnstone.v2", image, name, "sleep", "1000")
		check(t, err)
		out, err := b.ctr(t, "", "task", "exec", "--exec-id", "e", name, "sh", "-c", who)
		check(t, err)
		checkWho(t, "an exec without a pod of "+u.form, out, u.want)
		_, err = b.ctr(t, "", "task", "kill", "-s", "KILL", name)
		check(t, err)
		eventually(t, "its end", func() error {
			if state, _ := b.task(t, name); state != "STOPPED" {
				return errors.New(state)
			}
			return nil
		})
		_, err = b.ctr(t, "", "task", "delete", name)
		check(t, err)
		_, err = b.ctr(t, "", "container", "delete", name)
		check(t, err)
	}
	volume := b.path("pods/users/volumes/kubernetes.io~secret/own")
	check(t, os.MkdirAll(volume, 0o755))
	check(t, os.WriteFile(volume+"/key", []byte("secret"), 0o400))
	check(t, os.Chown(volume+"/key", 1000, 50000))
	given := p.run("given", func(c object) {
		c["mounts"] = []object{{"container_path": "/secret", "host_path": volume, "readonly": true}}
		c["image"] = object{"image": b.Registry.Host + "/user1:1"}
		c["envs"] = []object{{"key": "HOME", "value": "/h"}, {"key": "LOGNAME", "value": "me"}}
		sec := c["linux"].(object)["security_context"].(object)
		sec["run_as_user"], sec["readonly_rootfs"] = object{"value": 1000}, true
	}, "sh", "-c", strings.Replace(who, "touch made", "if touch made; then exit 1; fi", 1)+"; echo err; sleep 1000")
	checkWho(t, "what a pod names", p.ready("given"), "1000:1000 (1000 50000) /h default-user me /bin/sh")
	if out := p.exec(given, "sh", "-c", "cat /secret/key; stat -c ' %u:%g %a' /secret/key"); out != "secret 1000:50000 400" {
		t.Errorf("a file of a volume: %q", out)
	}
	_, err := b.Crictl(t.Context(), "", "rmp", "-f", p.id)
	check(t, err)
}

// ready waits until a container has written a line err to both standard streams, and returns its standard
// output.
func (p *pod) ready(name string) (out string) {
	p.t.Helper()
	file := p.b.path("logs/" + p.name + "-" + name + ".log") // crictl does not show the streams apart
	eventually(p.t, "the container's log", func() error {
		text, err := os.ReadFile(file)
		log := string(text)
		if err != nil || !strings.Contains(log, " stderr F err\n") || !strings.Contains(log, " stdout F err\n") {
			return fmt.Errorf("%q, %w", log, err)
		}
		out = ""
		for line := range strings.Lines(log) {
			if _, said, ok := strings.Cut(line, " stdout F "); ok {
				out += said
			}
		}
		return nil
	})
	return out
}
