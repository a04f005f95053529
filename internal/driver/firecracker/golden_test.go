package firecracker

import (
	"encoding/json"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/substrate"
)

// TestIdentityFormat checks the bytes of an identity, which is in keys of snapshots and in
// manifests of exported machines. A change of these bytes makes all of them unusable, and must be
// intended.
func TestIdentityFormat(t *testing.T) {
	s := &Substrate{version: "Firecracker v1.15.1", hostCPU: "sha256:aa", kernel: "6.1.0-50-amd64"}
	m := substrate.Machine{KernelDigest: "sha256:bb", InitDigest: "sha256:cc",
		RootDigest: "sha256:dd", Shape: turnstone.DefaultShape()}
	for _, tt := range []struct {
		own        bool
		text, name string
	}{
		{false, `{"substrate":"firecracker","format":1,"version":"Firecracker v1.15.1",` +
			`"hostCpu":"sha256:aa","hostKernel":"6.1.0-50-amd64",` +
			`"config":"sha256:565afb9c1066cefac608e3758542ea3c7bfdcbc6df13873f3a9efc869e34e41f",` +
			`"kernel":"sha256:bb","init":"sha256:cc","root":"sha256:dd",` +
			`"shape":{"cpus":1,"memory":1073741824,"disk":4294967296,"network":true}}`,
			"b9469106e8930e9dcac16e4243bc522e"},
		{true, `{"substrate":"firecracker","format":1,"version":"Firecracker v1.15.1",` +
			`"hostCpu":"sha256:aa","hostKernel":"6.1.0-50-amd64",` +
			`"config":"sha256:565afb9c1066cefac608e3758542ea3c7bfdcbc6df13873f3a9efc869e34e41f",` +
			`"kernel":"sha256:bb","ownKernel":true,"init":"sha256:cc","root":"sha256:dd",` +
			`"shape":{"cpus":1,"memory":1073741824,"disk":4294967296,"network":true}}`,
			"8bd9eab49e3f5c67c42eacc1079b4e07"},
	} {
		m.KernelIs.Own = tt.own
		id := s.identity(m)
		b, err := json.Marshal(id)
		if err != nil || string(b) != tt.text || id.key() != tt.name {
			t.Errorf("%s (%v), want %s; key %s, want %s", b, err, tt.text, id.key(), tt.name)
		}
	}
}
