package qemu

import (
	"encoding/json"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/snapshots"
	"turnstone.dev/turnstone/substrate"
)

// TestIdentityFormat checks the bytes of an identity, which is in keys of snapshots and in
// manifests of exported machines. A change of these bytes makes all of them unusable, and must be
// intended.
func TestIdentityFormat(t *testing.T) {
	s := &Substrate{version: "QEMU 7.2.22", accel: accelTCG, hostCPU: "sha256:aa"}
	m := substrate.Machine{KernelDigest: "sha256:bb", InitDigest: "sha256:cc",
		RootDigest: "sha256:dd", Shape: turnstone.DefaultShape()}
	for _, tt := range []struct {
		own        bool
		accel      accel
		text, name string
	}{
		{false, accelTCG, `{"format":1,"qemu":"QEMU 7.2.22","accel":"tcg","cpuModel":"max",` +
			`"hostCpu":"sha256:aa","arguments":"sha256:8802d3bbf5b35158c91b1c3522755ad42d77aba7a2256034ec51cb1da158bc8f","kernel":"sha256:bb",` +
			`"init":"sha256:cc","root":"sha256:dd","shape":{"cpus":1,"memory":1073741824,"disk":4294967296,"network":true}}`, "3895a0fde602cee48f59fd92e39739c2"},
		{true, accelKVM, `{"format":1,"qemu":"QEMU 7.2.22","accel":"kvm","cpuModel":"host",` +
			`"hostCpu":"sha256:aa","arguments":"sha256:e325639f9aa5495980b0a082a822dbee76a95c22a849b2d3cf1210b02a0c3a7f","kernel":"sha256:bb","ownKernel":true,` +
			`"init":"sha256:cc","root":"sha256:dd","shape":{"cpus":1,"memory":1073741824,"disk":4294967296,"network":true}}`, "71cb584ec236217d6e5de3f0b0e9453b"},
	} {
		s.accel, m.KernelIs.Own = tt.accel, tt.own
		id := s.identity(m)
		b, err := json.Marshal(id)
		if err != nil || string(b) != tt.text || id.key() != tt.name ||
			snapshots.Key(id) != tt.name {
			t.Errorf("%s (%v), want %s; key %s, want %s", b, err, tt.text, id.key(), tt.name)
		}
	}
}
