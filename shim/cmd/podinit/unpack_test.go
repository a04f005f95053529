package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"turnstone.dev/turnstone/shim/guest"
	"turnstone.dev/turnstone/shim/rootfs"
)

// helperVariable makes this program the helper: unpacking changes the root of its process.
const helperVariable = "TURN_TEST_PODINIT"

func TestMain(m *testing.M) {
	if os.Getenv(helperVariable) != "" {
		main()
	}
	os.Exit(m.Run())
}

// helper runs a command of the helper with an input.
func helper(t *testing.T, in io.Reader, args ...string) error {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can change the root of a process")
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), helperVariable+"=1")
	cmd.Stdin = in
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// pack returns the stream of a folder.
func pack(t *testing.T, dir string) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	check(t, rootfs.Pack(t.Context(), &b, dir, "", rootfs.Limits{}))
	return &b
}

// settings makes a volume as the kubelet does: a folder of this version has the files, and links lead to it.
func settings(t *testing.T, version int, keys ...string) string {
	t.Helper()
	dir, data := t.TempDir(), fmt.Sprintf("..2026_%03d", version)
	check(t, os.Mkdir(filepath.Join(dir, data), 0o755))
	check(t, os.Symlink(data, filepath.Join(dir, "..data")))
	for _, k := range keys {
		check(t, os.WriteFile(filepath.Join(dir, data, k), fmt.Appendf(nil, "%d", version), 0o644))
		check(t, os.Symlink("..data/"+k, filepath.Join(dir, k)))
	}
	return dir
}

func names(t *testing.T, dir string) (all []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	check(t, err)
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

// TestUpdate: whoever reads a volume while it is updated finds each file, whole, and both keys of one version; a
// key that is gone, and the files of the earlier version, are gone.
func TestUpdate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "volume")
	check(t, helper(t, pack(t, settings(t, 0, "a", "b", "old")), guest.CmdUnpack, dir))
	stop := make(chan struct{})
	var reading sync.WaitGroup
	defer reading.Wait()
	defer close(stop)
	reading.Go(func() {
		for read := 0; ; read++ {
			select {
			case <-stop:
				t.Logf("read %d times", read)
				return
			default:
			}
			text, err := os.ReadFile(filepath.Join(dir, "a"))
			// The folder that ..data led to may go between the link and the file, as on a kubelet's node.
			if err != nil && !gone(dir, err) || err == nil && len(text) == 0 {
				t.Errorf("read %d: %q, %v", read, text, err)
				return
			}
		}
	})
	long := strings.Repeat("k", 253) // the longest key
	for version := 1; version <= 30; version++ {
		check(t, helper(t, pack(t, settings(t, version, "a", "b", long)), guest.CmdUpdate, dir))
		for _, k := range []string{"a", "b", long} {
			if text, err := os.ReadFile(filepath.Join(dir, k)); err != nil || string(text) != fmt.Sprint(version) {
				t.Fatalf("%s of version %d: %q, %v", k, version, text, err)
			}
		}
	}
	if got, want := names(t, dir), []string{"..2026_030", "..data", "a", "b", long}; !slices.Equal(got, want) {
		t.Errorf("the volume has %q, want %q", got, want)
	}
}

// gone reports whether a file was missing because its version was: the links that lead there are not.
func gone(dir string, err error) bool {
	if !errors.Is(err, os.ErrNotExist) {
		return false
	}
	for _, link := range []string{"a", "..data"} {
		if _, err := os.Lstat(filepath.Join(dir, link)); err != nil {
			return false
		}
	}
	return true
}

// TestUpdateMeanwhile: a volume that was replaced while it was packed, so that its link leads to a folder that the
// stream lacks, changes nothing that a reader sees.
func TestUpdateMeanwhile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "volume")
	check(t, helper(t, pack(t, settings(t, 1, "a")), guest.CmdUnpack, dir))
	half := settings(t, 1, "a")
	check(t, os.Remove(filepath.Join(half, "..data")))
	check(t, os.Symlink("..2026_002", filepath.Join(half, "..data")))
	if err := helper(t, pack(t, half), guest.CmdUpdate, dir); err == nil || !strings.Contains(err.Error(), errChanged.Error()) {
		t.Errorf("half of two versions: %v", err)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "a")); err != nil || string(text) != "1" {
		t.Errorf("after it: %q, %v", text, err)
	}
}

// TestUnpackOver: an entry takes the place of one of any kind, and nothing else is left; hard links are kept.
func TestUnpackOver(t *testing.T) {
	kinds := map[string]tar.Header{
		"file":   {Typeflag: tar.TypeReg, Mode: 0o640, Uid: 7, Gid: 8},
		"folder": {Typeflag: tar.TypeDir, Mode: 0o750},
		"link":   {Typeflag: tar.TypeSymlink, Linkname: "to"},
		"hard":   {Typeflag: tar.TypeLink, Linkname: "target"},
		"pipe":   {Typeflag: tar.TypeFifo, Mode: 0o600},
	}
	stream := func(kind string) io.Reader {
		var b bytes.Buffer
		tw := tar.NewWriter(&b)
		h := kinds[kind]
		h.Name = "x"
		check(t, errors.Join(tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "target", Mode: 0o600}),
			tw.WriteHeader(&h), tw.Close()))
		return &b
	}
	for was := range kinds {
		for is := range kinds {
			dir := t.TempDir()
			for _, kind := range []string{was, is, is} {
				if err := helper(t, stream(kind), guest.CmdUnpack, dir); err != nil {
					t.Fatalf("%s over %s: %v", is, was, err)
				}
			}
			if got := names(t, dir); !slices.Equal(got, []string{"target", "x"}) {
				t.Errorf("%s over %s leaves %q", is, was, got)
			}
			var st syscall.Stat_t
			check(t, syscall.Lstat(filepath.Join(dir, "x"), &st))
			want := map[string]uint32{"file": syscall.S_IFREG | 0o640, "folder": syscall.S_IFDIR | 0o750,
				"link": syscall.S_IFLNK | 0o777, "hard": syscall.S_IFREG | 0o600, "pipe": syscall.S_IFIFO | 0o600}[is]
			if st.Mode != want || is == "file" && st.Uid != 7 || is == "hard" && st.Nlink != 2 {
				t.Errorf("%s over %s: mode %o, user %d, %d links", is, was, st.Mode, st.Uid, st.Nlink)
			}
		}
	}
}
