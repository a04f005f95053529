// Package turntest gives tests the shared home in which one built template and
// one snapshot serve all of them.
package turntest

import (
	"os"
	"path/filepath"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/agentbin"
	"turnstone.dev/turnstone/home"
	"turnstone.dev/turnstone/kernel"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/template"
)

// Home returns the home that tests share: $TURN_TEST_HOME, else a folder in the
// user's cache. With -short the test is skipped: what needs a home needs a
// machine, and that is slow.
func Home(t testing.TB) *home.Home {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a virtual machine; run without -short")
	}
	dir := os.Getenv("TURN_TEST_HOME")
	if dir == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			t.Fatal(err)
		}
		dir = filepath.Join(cache, "turnstone-test")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return &home.Home{Dir: dir}
}

// Machine returns a machine of the template image with the default shape, built
// in h where it is not yet.
func Machine(t testing.TB, h *home.Home, image string) substrate.Machine {
	t.Helper()
	ctx := t.Context()
	progress := func(what string) { t.Log(what) }
	tmpl, err := template.NewStore(h.Path("templates")).Ensure(ctx, image, progress)
	fatal(t, err)
	dir, err := h.MkdirAll("kernel")
	fatal(t, err)
	k, err := kernel.Ensure(ctx, dir, progress)
	fatal(t, err)
	agent, err := agentbin.Agent()
	fatal(t, err)
	initramfs, digest, err := k.Initramfs(ctx, dir, agent)
	fatal(t, err)
	return substrate.Machine{Kernel: k.Vmlinux, KernelDigest: k.Digest, Initramfs: initramfs, InitDigest: digest,
		Root: tmpl.Root, RootDigest: tmpl.RootDigest, Shape: turnstone.DefaultShape()}
}

func fatal(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%v (%s)", err, turnstone.HintOf(err))
	}
}
