package service

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"turnstone.dev/turnstone/shim/rootfs"
)

// TestMain is the program that makes images, if it is asked to.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == ImageCommand {
		if err := MakeImage(os.Stdin); err != nil {
			_, _ = os.Stderr.WriteString(err.Error())
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// TestMakeImage: an image is made by another process, which goes on when its caller does not wait, and says why it cannot.
func TestMakeImage(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a mount namespace takes root")
	}
	if _, err := os.Stat(groupFile()); groupFile() != "" && err != nil { // a write would make it
		t.Errorf("the file of the control group: %v", err)
	}
	layer := t.TempDir()
	if err := os.WriteFile(filepath.Join(layer, "a"), []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	x := &rootfs.Images{Dir: t.TempDir(), Make: makeImage(groupFile())}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := x.Of(gone, []string{layer}); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that is gone: %v", err)
	}
	x.Make = func(context.Context, rootfs.Order) error { return errors.New("there is none yet") }
	var err error
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if _, err = x.Of(t.Context(), []string{layer}); err == nil {
			break
		}
	}
	if err != nil {
		t.Errorf("it does not go on: %v", err)
	}
	x.Make = makeImage("")
	if path, err := x.Of(t.Context(), []string{layer}); err != nil || filepath.Dir(path) != x.Dir {
		t.Errorf("%q, %v", path, err)
	}
	if path, err := x.Of(t.Context(), []string{layer, t.TempDir()}); err != nil {
		t.Errorf("of two layers: %q, %v", path, err)
	}
	file := filepath.Join(layer, "a")
	if _, err := x.Of(t.Context(), []string{file, layer}); err == nil || errors.Is(err, os.ErrNotExist) {
		t.Errorf("a layer that is no folder: %v", err)
	}
}
