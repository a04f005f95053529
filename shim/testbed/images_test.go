package testbed

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// made returns the images of root file systems on the host, with what identifies their files.
func (b *Bed) made(t *testing.T) (all []string) {
	t.Helper()
	paths, err := filepath.Glob(b.path("home/pods/roots/*"))
	check(t, err)
	for _, path := range paths {
		st, err := os.Stat(path)
		check(t, err)
		if filepath.Ext(path) != ".json" {
			all = append(all, fmt.Sprint(filepath.Base(path), " ", st.Sys().(*syscall.Stat_t).Ino))
		}
	}
	return all
}

// testImages: containers of an image share one on the host, which none of them changes, and which goes after the image
// has; a container with files of its own has them.
func testImages(t *testing.T, b *Bed) {
	p := b.pod(t, "images")
	const look = "cat /www/index.html; echo changed > /www/index.html; rm /bin/true; mkdir /www/new; chmod 700 /tmp; " +
		"stat -c '%a %h' /bin/busybox; ls /www /bin/true 2>&1; df -P / | awk 'END {print $2, $6}'; sleep 1000"
	named := func(name string) func(object) {
		return func(c object) { c["image"] = object{"image": b.Registry.Host + "/" + name} }
	}
	read := func(id string) (out string) {
		t.Helper()
		eventually(t, "its log", func() error {
			if out = p.logs(id); !strings.HasSuffix(out, " /") {
				return fmt.Errorf("%q", out)
			}
			return nil
		})
		return out
	}
	first := p.run("first", nil, "sh", "-c", look)
	want := read(first)
	if !strings.HasPrefix(want, "served from a pod\n755 ") || !strings.Contains(want, "\nls: /bin/true: No such file") {
		t.Errorf("%q", want)
	}
	images := b.made(t)
	if got := read(p.run("second", nil, "sh", "-c", look)); got != want {
		t.Errorf("another container of the pod has %q and not %q", got, want)
	}
	if out := p.exec(first, "cat", "/www/index.html"); out != "changed" {
		t.Errorf("an exec sees %q", out)
	}
	_, err := b.Crictl(t.Context(), "", "rm", "-f", first)
	check(t, err)
	if got := read(p.run("first", nil, "sh", "-c", look)); got != want {
		t.Errorf("the container made again has %q and not %q", got, want)
	}
	if now := b.made(t); !slices.Equal(now, images) || len(now) == 0 {
		t.Errorf("images are %q and were %q", now, images)
	}
	own, err := p.create("own", nil, "cat", "/of-its-own")
	check(t, err)
	b.writeInto(t, "/of-its-own", "text")
	_, err = b.Crictl(t.Context(), "", "start", own)
	check(t, err)
	if code := p.await(own); code != 0 || p.logs(own) != "text" {
		t.Errorf("a container with a file of its own: %d, %q", code, p.logs(own))
	}

	// what is written into a container is no part of its image's image
	check(t, b.Registry.Push("fresh:1", v1.Config{Env: []string{"PATH=/bin"}}, nil, map[string]string{"fresh": "1"}))
	own, err = p.create("fresh-own", named("fresh:1"), "cat", "/of-its-own")
	check(t, err)
	b.writeInto(t, "/of-its-own", "text")
	_, err = b.Crictl(t.Context(), "", "start", own)
	check(t, err)
	if p.await(own); p.logs(own) != "text" {
		t.Errorf("a container with a file of its own, of an image without one: %q", p.logs(own))
	}
	if p.await(p.run("fresh", named("fresh:1"), "ls", "/of-its-own")) == 0 {
		t.Error("another container has that file")
	}
	images = b.made(t)

	check(t, b.Registry.Push("gone:1", v1.Config{Env: []string{"PATH=/bin"}}, nil, map[string]string{"a": "1"}))
	check(t, b.Registry.Push("new:1", v1.Config{Env: []string{"PATH=/bin"}}, nil, map[string]string{"a": "2"}))
	gone := p.run("gone", named("gone:1"), "cat", "/a")
	p.await(gone)
	if now := b.made(t); len(now) != len(images)+1 {
		t.Errorf("another image: %q", now)
	}
	_, err = b.Crictl(t.Context(), "", "rm", gone)
	check(t, err)
	_, err = b.Crictl(t.Context(), "", "rmi", b.Registry.Host+"/gone:1")
	check(t, err)
	eventually(t, "the removal of an image's image", func() error {
		id := p.run("new", named("new:1"), "cat", "/a")
		if p.await(id); p.logs(id) != "2" {
			t.Errorf("it has %q", p.logs(id))
		}
		_, err := b.Crictl(t.Context(), "", "rm", id)
		check(t, err)
		if now := b.made(t); len(now) != len(images)+1 {
			_, err = b.Crictl(t.Context(), "", "rmi", b.Registry.Host+"/new:1") // containerd removes snapshots later
			check(t, err)
			return fmt.Errorf("images are %q", now)
		}
		return nil
	})
	_, err = b.Crictl(t.Context(), "", "rmp", "-f", p.id)
	check(t, err)
}
