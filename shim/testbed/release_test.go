package testbed

import (
	"os"
	"strings"
	"testing"

	"turnstone.dev/turnstone/internal/testhome"
)

// TestReleases runs pods and other containers under the newest containerd of each earlier minor version.
// That of the module tools has more tests, as TestPods.
func TestReleases(t *testing.T) {
	if os.Getenv("TURN_TEST_FULL") == "" {
		t.Skip("builds several containerds: run make test-again FULL=1")
	}
	for _, r := range Releases {
		t.Run(r.Version, func(t *testing.T) {
			b := bedOf(t, r)
			out, err := b.Crictl(t.Context(), "", "version")
			check(t, err)
			if !strings.Contains(out, "RuntimeVersion:  "+strings.TrimPrefix(r.Version, "v")+"+") {
				t.Fatalf("another containerd: %s", out)
			}
			testSubstrate(t, b)
			t.Run("without a pod", func(t *testing.T) { testLone(t, b) })
			t.Run("refusals", func(t *testing.T) { testRefusals(t, b) })
			t.Run("deaths", func(t *testing.T) { testDeaths(t, b) })
			t.Run("containerd restarts", func(t *testing.T) { testRestart(t, b) })
			t.Run("killed shim", func(t *testing.T) { testKilled(t, b) })
			testBeside(t, b)
			t.Run("upgrade", func(t *testing.T) { testUpgrade(t, b) })
		})
	}
}

// testUpgrade checks that the newest containerd takes over the pods of an earlier one. It leaves the newest
// running.
func testUpgrade(t *testing.T, b *Bed) {
	p := b.pod(t, "upgrade")
	id := p.run("main", nil, "sleep", "1000")
	b.Kill()
	tools, err := Tools(t.Context(), testhome.Dir(t), "tools")
	check(t, err)
	b.options.Tools, b.options.Release = tools, ""
	check(t, os.WriteFile(b.path("config.toml"), []byte(b.config()), 0o644))
	check(t, b.Start())
	for _, id := range []string{id, p.run("new", nil, "sleep", "1000")} {
		if out := p.exec(id, "echo", "still here"); out != "still here" {
			t.Errorf("exec after the upgrade: %q", out)
		}
	}
	_, err = b.Crictl(t.Context(), "", "rmp", "-f", p.id)
	check(t, err)
	b.nothingOf(t, p.id)
}

// testBeside runs tests beside one whose time is mostly a wait for a sandbox that hangs.
func testBeside(t *testing.T, b *Bed) {
	tests := map[string]func(*testing.T, *Bed){"hanging sandbox": testHanging, "users": testUsers}
	if b.Handler == Handlers[0] {
		tests["options"] = testOptions
	}
	t.Run("beside each other", func(t *testing.T) {
		for name, test := range tests {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t, b)
			})
		}
	})
}

// testOptions checks that the settings of a runtime come to its shim: as options in containerd's
// configuration, or in a file that these, a client of containerd, or the shim's program name.
func testOptions(t *testing.T, shared *Bed) {
	own := *shared
	b := &own // with another handler
	for _, b.Handler = range []string{Handlers[0], namedHandler, bodyHandler, fileHandler} {
		want := "2"
		if b.Handler != Handlers[0] {
			want = "1"
			config, err := b.JSON(podConfig(b, "large", object{"resources": object{"memory_limit_in_bytes": 400 << 20}}))
			check(t, err)
			if _, err := b.Crictl(t.Context(), "", "runp", "--runtime", b.Handler, config); err == nil ||
				!strings.Contains(err.Error(), "at most 300000000") {
				t.Errorf("%s: more than it may have: %v", b.Handler, err)
			}
		}
		p := b.pod(t, b.Handler)
		id, err := p.create("main", nil, "sleep", "1000")
		check(t, err)
		_, err = b.Crictl(t.Context(), "", "start", id)
		switch {
		case b.before("v2.3.") && (b.Handler == bodyHandler || b.Handler == fileHandler):
			if err == nil || !strings.Contains(err.Error(), "failed to get runtime v2 options") {
				t.Errorf("%s: containerd's fault is gone: %v", b.Handler, err)
			}
		case err != nil:
			t.Errorf("%s: %v", b.Handler, err)
		default:
			if out := p.exec(id, "nproc"); out != want {
				t.Errorf("%s: %s processors, want %s", b.Handler, out, want)
			}
		}
		_, err = b.Crictl(t.Context(), "", "rmp", "-f", p.id)
		check(t, err)
	}
	_, err := b.ctr(t, "", "image", "pull", "--plain-http", b.Registry.Host+"/busybox:1")
	check(t, err)
	for want, flags := range map[string][]string{"2": nil, "1": {"--runtime-config-path", b.path("handler.toml")}} {
		out, err := b.loneRun(t, "", append(flags, "--rm", "IMAGE", "options", "nproc")...)
		if err != nil || out != want+"\n" {
			t.Errorf("without a pod, %v: %q, %v", flags, out, err)
		}
	}
}
