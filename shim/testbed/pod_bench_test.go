package testbed

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"turnstone.dev/turnstone/internal/testhome"
)

// BenchmarkPod has pods of the shim and of gVisor's own shim, as published, alternately under one containerd, and reports
// how long each takes from the kubelet's first call until its container has written a line: of a small image, and of one
// with a file of 200 MB.
func BenchmarkPod(b *testing.B) {
	if err := lowered(); err != nil {
		b.Skip("gVisor's own shim lowers its OOM score, which this machine refuses: ", err)
	}
	peer, err := Peer(b.Context(), testhome.Dir(b), "gvisor")
	check(b, err)
	bed := bedWith(b, Release{}, func(o *Options) { o.Peer, o.Mirrors = peer, []string{pauseRegistry} })
	check(b, bed.Registry.Push("pause:"+pauseTag, v1.Config{Entrypoint: []string{"sleep", "1000000"}, Env: []string{"PATH=/bin"}},
		nil, nil))
	c, err := grpc.NewClient(bed.Endpoint(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	check(b, err)
	defer func() { _ = c.Close() }()
	p := &pods{bed: bed, runtime: cri.NewRuntimeServiceClient(c)}
	random := rand.NewChaCha8([32]byte{})
	large := make([]byte, 200<<20)
	_, _ = random.Read(large) // documented never to fail
	check(b, bed.Registry.Push("large:1", v1.Config{Env: []string{"PATH=/bin"}}, nil, map[string]string{"large": string(large)}))
	for _, image := range []string{"busybox:1", "large:1"} {
		b.Run(image, func(b *testing.B) { p.compare(b, image) })
	}
}

// compare starts pods of an image with both shims alternately.
func (p *pods) compare(b *testing.B, image string) {
	p.b, p.image = b, p.bed.Registry.Host+"/"+image
	handlers := []string{Handlers[0], peerHandler}
	_, err := p.bed.Crictl(b.Context(), "", "pull", p.image)
	check(b, err)
	for _, h := range handlers { // the first of each makes images and checkpoints that others share
		b.Logf("the first of %s: %d ms", h, p.start(h).Milliseconds())
	}
	took := map[string][]time.Duration{}
	for b.Loop() {
		for _, h := range handlers {
			took[h] = append(took[h], p.start(h))
		}
	}
	b.ReportMetric(0, "ns/op") // of both
	for _, h := range handlers {
		slices.Sort(took[h])
		b.ReportMetric(float64(took[h][len(took[h])/2].Milliseconds()), h+"-ms")
	}
	b.ReportMetric(float64(took[handlers[0]][len(took[handlers[0]])/2])/float64(took[peerHandler][len(took[peerHandler])/2]), "ratio")
}

// lowered lowers the OOM score of this process and raises it again.
func lowered() error {
	const file = "/proc/self/oom_score_adj"
	was, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(file, []byte("-999"), 0)
	}
	if err == nil {
		err = os.WriteFile(file, was, 0)
	}
	return err
}

// pods are made by the calls that a kubelet makes.
type pods struct {
	b       *testing.B
	bed     *Bed
	runtime cri.RuntimeServiceClient
	image   string
	count   int
}

// start starts a pod with a container, waits for its first line, and removes it.
func (p *pods) start(handler string) time.Duration {
	p.b.Helper()
	p.count++
	name := fmt.Sprint("pod-", p.count)
	ctx, cancel := context.WithTimeout(p.b.Context(), limit)
	defer cancel()
	security := &cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER}
	pod := &cri.PodSandboxConfig{Metadata: &cri.PodSandboxMetadata{Name: name, Namespace: "bench", Uid: name, Attempt: 1},
		LogDirectory: p.bed.path("logs"), Linux: &cri.LinuxPodSandboxConfig{
			SecurityContext: &cri.LinuxSandboxSecurityContext{NamespaceOptions: security}}}
	began := time.Now()
	s, err := p.runtime.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: pod, RuntimeHandler: handler})
	check(p.b, err)
	made, err := p.runtime.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: s.PodSandboxId, SandboxConfig: pod,
		Config: &cri.ContainerConfig{Metadata: &cri.ContainerMetadata{Name: "main", Attempt: 1}, LogPath: name + ".log",
			Image:   &cri.ImageSpec{Image: p.image},
			Command: []string{"sh", "-c", "echo up; exec sleep 1000000"}, Linux: &cri.LinuxContainerConfig{
				SecurityContext: &cri.LinuxContainerSecurityContext{NamespaceOptions: security}}}})
	check(p.b, err)
	_, err = p.runtime.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: made.ContainerId})
	check(p.b, err)
	for {
		text, _ := os.ReadFile(filepath.Join(p.bed.path("logs"), name+".log"))
		if bytes.Contains(text, []byte("up\n")) {
			break
		}
		if ctx.Err() != nil {
			p.b.Fatalf("%s has written %q", name, text)
		}
		time.Sleep(time.Millisecond) //wait: the loop polls
	}
	took := time.Since(began)
	_, err = p.runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: s.PodSandboxId})
	check(p.b, err)
	_, err = p.runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: s.PodSandboxId})
	check(p.b, err)
	return took
}
