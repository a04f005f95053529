package testbed

import (
	"os"
	"strings"
	"testing"
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
			t.Run("options", func(t *testing.T) { testOptions(t, b) })
			t.Run("users", func(t *testing.T) { testUsers(t, b) })
			t.Run("deaths", func(t *testing.T) { testDeaths(t, b) })
			t.Run("containerd restarts", func(t *testing.T) { testRestart(t, b) })
			t.Run("killed shim", func(t *testing.T) { testKilled(t, b) })
			t.Run("hanging sandbox", func(t *testing.T) { testHanging(t, b) })
		})
	}
}

// testOptions checks that the settings of a runtime come to its shim: as options in containerd's
// configuration, or in a file that these, a client of containerd, or the shim's program name.
func testOptions(t *testing.T, b *Bed) {
	was := b.Handler
	defer func() { b.Handler = was }()
	for _, b.Handler = range []string{Handlers[0], namedHandler, bodyHandler, fileHandler} {
		want := "1"
		if b.Handler == Handlers[0] {
			want = "2"
		}
		config, err := b.JSON(podConfig(b, "large", object{"resources": object{"memory_limit_in_bytes": 400 << 20}}))
		check(t, err)
		if _, err := b.Crictl(t.Context(), "", "runp", "--runtime", b.Handler, config); want == "1" && (err == nil ||
			!strings.Contains(err.Error(), "at most 300000000")) {
			t.Errorf("%s: more than it may have: %v", b.Handler, err)
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
		_, err = b.Crictl(t.Context(), "", "rmp", "-fa")
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
