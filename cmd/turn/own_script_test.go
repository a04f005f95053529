package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"

	"turnstone.dev/turnstone/internal/guest/kernel"
	homepkg "turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/template"
)

// templates gives a home templates of its own, in place of those that tests share: "templates [-copy]
// HOME [NAME…]". It has the root images that are named, and those that a script builds there are in no
// other home. Other tests may build and describe images of the shared home at any moment: an image that is
// taken is finished, and its folder is a link, so that nothing of it changes. With -copy the home has
// files of its own.
func templates(ts *testscript.TestScript, neg bool, args []string) {
	copies := len(args) > 0 && args[0] == "-copy"
	if copies {
		args = args[1:]
	}
	if neg || len(args) == 0 {
		ts.Fatalf("usage: templates [-copy] HOME [NAME…]")
	}
	own := ownFolder(ts, args[0], "templates")
	shared := template.NewStore(filepath.Join(ts.Getenv("SHARED"), "templates"))
	for _, name := range args[1:] {
		t, err := shared.Ensure(context.Background(), name, nil)
		ts.Check(err)
		from := filepath.Dir(t.Root)
		to := filepath.Join(own, filepath.Base(from))
		if !copies {
			ts.Check(os.Symlink(from, to))
			continue
		}
		ts.Check(os.Mkdir(to, 0o700))
		out, err := exec.Command("cp", "-a", filepath.Join(from, "manifest.json"), t.Root, to).CombinedOutput()
		ts.Logf("%s", out)
		ts.Check(err)
	}
}

// layered gives a home, before its first use, builds of layered templates: "layered HOME NAME…". Their files
// are in a home's store, so that each home would build them again, for minutes. They are built once, in a
// home for that alone; HOME gets a copy of its store, and links to its images.
func layered(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: layered HOME NAME…")
	}
	ctx, shared := context.Background(), ts.Getenv("SHARED")
	lock, err := homepkg.Acquire(ctx, filepath.Join(shared, "layered.lock"), nil)
	ts.Check(err)
	defer lock.Release()
	builder := filepath.Join(shared, "layered")
	link := func(from, to string) {
		ts.Check(os.MkdirAll(to, 0o700))
		if err := os.Symlink(from, filepath.Join(to, filepath.Base(from))); !errors.Is(err, fs.ErrExist) {
			ts.Check(err)
		}
	}
	for _, part := range []string{"kernel", "snapshots", "cache", "gvisor"} {
		link(filepath.Join(shared, part), builder)
	}
	roots, err := filepath.Glob(filepath.Join(shared, "templates", strings.Repeat("[0-9a-f]", 64), "root.erofs"))
	ts.Check(err)
	for _, root := range roots {
		link(filepath.Dir(root), filepath.Join(builder, "templates"))
	}
	was := ts.Getenv("TURN_HOME")
	ts.Setenv("TURN_HOME", builder)
	for _, name := range args[1:] {
		ts.Check(ts.Exec("turn", "template", "build", "-q", name))
	}
	ts.Setenv("TURN_HOME", was)

	own := ownFolder(ts, args[0], "templates")
	built, err := filepath.Glob(filepath.Join(builder, "templates", strings.Repeat("[0-9a-f]", 64)))
	ts.Check(err)
	for _, from := range built {
		ts.Check(os.Symlink(from, filepath.Join(own, filepath.Base(from))))
	}
	// An image of its layers, for machines, is made once too.
	images := filepath.Join(builder, "images")
	ts.Check(os.MkdirAll(images, 0o700))
	ts.Check(os.Symlink(images, filepath.Join(filepath.Dir(own), "images")))
	files, err := filepath.Glob(filepath.Join(builder, "context.db*"))
	ts.Check(err)
	files = append(files, filepath.Join(builder, "store"), filepath.Dir(own))
	ts.Check(ts.Exec("cp", append([]string{"-a"}, files...)...))
}

// ownKernel gives a home a folder for kernels of its own, which is empty, and puts the path of the kernel
// that tests share, which is Debian's, into KERNEL: "kernel HOME".
func ownKernel(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: kernel HOME")
	}
	ownFolder(ts, args[0], "kernel")
	k, err := kernel.Ensure(context.Background(), filepath.Join(ts.Getenv("SHARED"), "kernel"),
		kernel.Choice{}, func(string) {})
	ts.Check(err)
	ts.Setenv("KERNEL", k.Vmlinux)
}

// ownFolder makes an empty folder of a home, in place of a link to a shared one.
func ownFolder(ts *testscript.TestScript, home, name string) string {
	path := filepath.Join(ts.MkAbs(home), name)
	ts.Check(os.MkdirAll(filepath.Dir(path), 0o700))
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		ts.Check(err)
	}
	ts.Check(os.Mkdir(path, 0o700))
	return path
}
