package testbed

import (
	"archive/tar"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// integrationSkipped are containerd's own tests of the CRI that do not apply here, with the reason:
// see docs/shim.md. Tests that skip themselves are not in it.
var integrationSkipped = map[string][]string{
	"the pod asks for the network, the processes or a device of the host": {
		"TestContainerStopSignals", "TestDefaultContainerStopSignal",
		"TestSharedPidMultiProcessContainerStop/hostpid", "TestPodHostname/host_network_pod_without",
		"TestContainerSysfsStatsWithPrivilegedPod", "TestPrivilegedContainerCgroupMountOptions",
		"TestContainerCgroupWritable"},
	"the container writes to a folder of the host": {"TestContainerSymlinkVolumes", "TestVolumeCopyUp"},
	"they look for what runc has on the host: terminals, pipes, control groups": {
		"TestContainerTTYLeakAfterExit", "TestContainerIOLeakAfterStartFailed",
		"TestUpdateContainerResources_MemoryLimit"},
	"an exec ends with its first process, and its output with it": {
		"TestContainerDrainExecIOAfterExit"},
	"there is no pause image, and no pause container": {"TestContainerdSandboxImage",
		"TestContainerdRestart$"},
	"the tests' image has no program that takes memory": {"TestContainerConsumedStats"},
	"they start another containerd, an older one, or one with runc, or need its failpoints": {
		"TestRunContainerWithVolatileOption", "TestIssue10244LoopbackV2", "TestIssue10467",
		"TestIssue7496", "TestKillShim", "TestShutdownShimWhenPauseExitsBeforeWorkload",
		"TestOOMEventMonitor", "TestUpgrade", "TestReload100Pods", "TestRuntimeHandlerUnpack",
		"TestContainerdRestartSandboxRecover", "TestPodSandboxController", "TestRunPodSandboxWithS",
		"TestRunPodSandboxAndTeardownCNISlow", "TestSandboxStopWithNilCNIResult",
		"TestCRIImagePullTimeout", "TestFailFastWhenConnectShim"},
	"NRI is not switched on":      {"TestNri", "TestUpdatePodSandboxWithRestart"},
	"user namespaces are refused": {"TestPodUserNS", "TestIssue10598", "TestUsernsVolumeCopyUp"},
	"it needs docker, or a CNI plug-in whose state is in /var/lib": {"TestImageLoad",
		"TestSandboxRemoveWithoutIPLeakage"},
}

// integrationImages pushes the images that the tests name, and returns the list of their names.
func integrationImages(b *Bed) (string, error) {
	entry := func(kind byte, name string, owner int) *tar.Header {
		return &tar.Header{Typeflag: kind, Name: name, Mode: 0o755, Uid: owner, Gid: owner}
	}
	dir := func(name string) *tar.Header { return entry(tar.TypeDir, name, 0) }
	file := func(name string) *tar.Header { return entry(tar.TypeReg, name, 0) }
	link := entry(tar.TypeSymlink, "bin/sh", 0)
	link.Linkname = "/bin/busybox"
	env, list := []string{"PATH=/bin"}, ""
	for _, x := range []struct {
		names   []string
		config  v1.Config
		entries []*tar.Header
		texts   map[string]string
	}{
		{[]string{"BusyBox"}, v1.Config{Cmd: []string{"sh"}}, nil, map[string]string{
			"etc/passwd": "root:x:0:0:root:/root:/bin/sh\ndaemon:x:1:1:daemon:/usr/sbin:/bin/false\n",
			"etc/group":  "root:x:0:\ndaemon:x:1:\nwheel:x:10:root\n"}},
		{[]string{"Alpine"}, v1.Config{Cmd: []string{"sh"}}, []*tar.Header{link},
			map[string]string{"etc/os-release": "NAME=\"Alpine Linux\"\n"}},
		{[]string{"Pause", "ResourceConsumer"}, v1.Config{Cmd: []string{"sleep", "100000"}},
			[]*tar.Header{file("pause")}, nil},
		{[]string{"VolumeOwnership"}, v1.Config{Volumes: map[string]struct{}{"/test_dir": {}}},
			[]*tar.Header{dir("test_dir/"), entry(tar.TypeDir, "test_dir/", 65534)}, nil},
	} {
		x.config.Env = env
		ref := strings.ToLower(x.names[0]) + ":1"
		if err := b.Registry.Push(ref, x.config, x.entries, x.texts); err != nil {
			return "", err
		}
		for _, name := range x.names {
			list += fmt.Sprintf("%s = %q\n", name, b.Registry.Host+"/"+ref)
		}
	}
	return list, nil
}

// TestIntegration runs containerd's own tests of the CRI (its package integration), except
// integrationSkipped.
func TestIntegration(t *testing.T) {
	if os.Getenv("TURN_TEST_INTEGRATION") == "" {
		t.Skip("takes minutes: run make shim-integration")
	}
	b := bed(t)
	program, err := Test(t.Context(), b.options.Tools, "integration",
		"github.com/containerd/containerd/v2/integration")
	check(t, err)
	list, err := integrationImages(b)
	check(t, err)
	check(t, os.WriteFile(b.path("list.toml"), []byte(list), 0o644))
	var skip []string
	for _, names := range integrationSkipped {
		for _, n := range names {
			skip = append(skip, "^"+n)
		}
	}
	slices.Sort(skip)
	cmd := exec.CommandContext(t.Context(), program, "-test.v", "-test.timeout=40m",
		"-cri-endpoint", b.Endpoint(), "-image-list", b.path("list.toml"),
		"-runtime-handler", b.Handler, "-containerd-bin", "none", "-test.skip", strings.Join(skip, "|"))
	cmd.Dir = b.Dir
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Errorf("%v\n%s", err, &out)
	}
	results := regexp.MustCompile(`(?m)^ *--- (PASS|FAIL|SKIP): .*$`).FindAllString(out.String(), -1)
	t.Logf("%s", strings.Join(results, "\n"))
}
