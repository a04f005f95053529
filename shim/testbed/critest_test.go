package testbed

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// skipped are the tests of critest that cannot pass here, with the reason: see docs/shim.md.
var skipped = map[string][]string{
	"a pod does not have it": {"Mount Propagation", "Mount Readonly", "Container OOM",
		"starting container with volume", "support HostPID", "HostIpc is true", "HostNetwork is true",
		"Privileged is true", "adding capability", "adding ALL capabilities",
		"portforward in host network"},
	"profiles do not apply in the sandbox":           {"SeccompProfilePath"},
	"gVisor's kernel does not have these parameters": {"support sysctls"},
	"counters of the host's control groups":          {"listing pod sandbox metrics"},
	"the registry of the tests does not have the image": {"Image Manager", "Image Identifier",
		"Image Volume", "Image Consistency", "Multiple Containers", "support PodPID",
		"support ContainerPID", "SupplementalGroupsPolicy", "NoNewPrivs"},
	"Debian's busybox has no pgrep or ipcs, or runs ls itself": {"execSync with timeout",
		"HostIpc is false", "support MaskedPaths"},
	"the network of the tests has no plug-in for it": {"host port and container port"},
	"other systems, other interfaces":                {"[Bb]enchmark", "Checkpoint", "Windows"},
}

// TestCritest runs the conformance tests of the CRI (cri-tools), except skipped.
func TestCritest(t *testing.T) {
	if os.Getenv("TURN_TEST_CRITEST") == "" {
		t.Skip("takes minutes: run make critest")
	}
	b := bed(t)
	_, err := Test(t.Context(), b.options.Tools, "tools", "sigs.k8s.io/cri-tools/cmd/critest")
	check(t, err)
	var skip []string
	for _, names := range skipped {
		skip = append(skip, names...)
	}
	out, err := b.Tool(t.Context(), "", "critest", "-runtime-endpoint", b.Endpoint(),
		"-image-endpoint", b.Endpoint(), "-runtime-handler", "turnstone",
		"-test-images-file", b.path("images.yaml"), "-registry-prefix", b.Registry.Host,
		"-ginkgo.skip", strings.Join(skip, "|"), "-ginkgo.no-color")
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	t.Log(regexp.MustCompile(`(?m)^Ran .*(?:\n.*Passed.*)?`).FindString(out))
}
