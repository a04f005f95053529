package service

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	taskAPI "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types"
)

// TestLayers: only an overlay of folders, to which nothing was written, is known by its layers.
func TestLayers(t *testing.T) {
	empty, full := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "a"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	overlay := func(options ...string) *types.Mount {
		return &types.Mount{Type: "overlay", Source: "overlay", Options: options}
	}
	for _, c := range []struct {
		what   string
		mounts []*types.Mount
		want   []string
	}{
		{"a container", []*types.Mount{overlay("index=off", "workdir=/w", "upperdir="+empty, "lowerdir=/b:/a")}, []string{"/b", "/a"}},
		{"a view", []*types.Mount{overlay("lowerdir=/b:/a", "ro")}, []string{"/b", "/a"}},
		{"with files of its own", []*types.Mount{overlay("upperdir="+full, "lowerdir=/a")}, nil},
		{"whose own files cannot be read", []*types.Mount{overlay("upperdir="+empty+"/none", "lowerdir=/a")}, nil},
		{"with an unknown option", []*types.Mount{overlay("lowerdir+=/c", "upperdir="+empty, "lowerdir=/a")}, nil},
		{"a relative path", []*types.Mount{overlay("upperdir="+empty, "lowerdir=a")}, nil},
		{"a folder", []*types.Mount{{Type: "bind", Source: "/a", Options: []string{"rbind"}}}, nil},
		{"two mounts", []*types.Mount{overlay("lowerdir=/a"), overlay("lowerdir=/b")}, nil},
		{"a part", []*types.Mount{{Type: "overlay", Target: "/sub", Options: []string{"lowerdir=/a"}}}, nil},
		{"no mount", nil, nil},
	} {
		var got []string
		if layers := rootOf(&taskAPI.CreateTaskRequest{Rootfs: c.mounts}, "/root").Layers; layers != nil {
			got = layers()
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.what, got, c.want)
		}
	}
}
