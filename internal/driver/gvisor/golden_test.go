package gvisor

import (
	"encoding/json"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/host"
	"turnstone.dev/turnstone/internal/driver/snapshots"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/substrate"
)

// TestIdentityFormat checks the bytes of an identity, which is in keys of snapshots and in
// manifests of exported sandboxes. A change of these bytes makes all of them unusable, and must be
// intended.
func TestIdentityFormat(t *testing.T) {
	s := &Substrate{hostCPU: "sha256:aa", kernel: "6.1.0-50-amd64"}
	s.program.Binary.Digest = "sha256:bb"
	id, err := s.identity(substrate.Machine{AgentDigest: "sha256:cc", RootDigest: "sha256:dd",
		Shape: turnstone.DefaultShape()})
	if err != nil {
		t.Fatal(err)
	}
	const name = "gvisor-0db78b2f8da6cef6d0df16f0a2742550"
	if id.key() != name {
		t.Errorf("key %s, want %s", id.key(), name)
	}
	taken := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	st := filestamp.Stamp{Digest: "sha256:ab", Size: 1, Inode: 2, MtimeNs: 3, CtimeNs: 4}
	pack := packManifest{Format: packFormat, Identity: id, CPU: &host.Model{Name: "A",
		Features: []string{"b"}}, Taken: taken,
		Files: []packed{{"pages.img", 1, "sha256:ab"}}, Layers: []string{"l"}}
	pack.Sum = pack.sum()
	const identity = `{"format":1,"runsc":"sha256:bb",` +
		`"spec":"sha256:7b4d7192cae90a200bee3f71a33fff60e6148351e914472e9359f9a710c097ae",` +
		`"hostCpu":"sha256:aa","kernel":"6.1.0-50-amd64","agent":"sha256:cc","root":"sha256:dd",` +
		`"shape":{"cpus":1,"memory":1073741824,"disk":4294967296,"network":true}}`
	const stamp = `{"digest":"sha256:ab","size":1,"inode":2,"mtime_ns":3,"ctime_ns":4}`
	for want, value := range map[string]any{
		identity: id,
		`{"identity":` + identity + `,"taken":"2026-01-02T03:04:05Z",` +
			`"files":{"pages.img":` + stamp + `},"layers":[{"path":"/l","stamp":` + stamp +
			`}]}`: manifest{Identity: id, Taken: taken,
			Files:  map[string]filestamp.Stamp{"pages.img": st},
			Layers: []snapshots.Layer{{Path: "/l", Stamp: st}}},
		`{"format":1,"identity":` + identity +
			`,"cpu":{"name":"A","features":["b"]},"taken":"2026-01-02T03:04:05Z",` +
			`"files":[{"name":"pages.img","size":1,"digest":"sha256:ab"}],` +
			`"layers":["l"],"sum":"sha256:1c2d59b9b052cee956aa52026814dae053aec61b4aa06812382f75d69b05072a"}`: pack,
	} {
		if got, err := json.Marshal(value); err != nil || string(got) != want {
			t.Errorf("%s (%v), want\n%s", got, err, want)
		}
	}
}
