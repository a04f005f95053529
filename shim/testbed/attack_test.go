package testbed

import (
	"archive/tar"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// hostile are entries of a layer that lead out of the root file system, hide what a container needs,
// or are more than a program expects. outside is a folder of the host.
func hostile(outside string) []*tar.Header {
	link := func(name, to string) *tar.Header {
		return &tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to, Mode: 0o777}
	}
	file := func(name string, mode int64) *tar.Header {
		return &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode}
	}
	all := []*tar.Header{
		link("out", outside), file("out/through-a-link", 0o644),
		file("../../../../../../up", 0o644), file("/absolute", 0o644),
		{Typeflag: tar.TypeLink, Name: "hard", Linkname: "../../../../absolute"},
		link("dev", outside), link("proc", "/www"), link("sys", "../../../../../srv"),
		link("etc/hosts", "/../../../../etc/passwd"), link("etc/resolv.conf", outside+"/resolv.conf"),
		link("loop", "loop"), link("vol", outside),
		{Typeflag: tar.TypeChar, Name: "disk", Mode: 0o666, Devmajor: 254},
		{Typeflag: tar.TypeFifo, Name: "fifo", Mode: 0o666},
		file("setuid", 0o4755), file("strange \xff\n\x1bname", 0o644),
		{Typeflag: tar.TypeDir, Name: "many/", Mode: 0o755},
		{Typeflag: tar.TypeDir, Name: "data/", Mode: 0o700}, file("data/of-the-image", 0o600),
	}
	for i := range 3000 { // several pieces
		all = append(all, link(fmt.Sprintf("many/%d", i), "to"))
	}
	return all
}

// testHostileImage runs an image that attacks who unpacks, copies and starts it.
func testHostileImage(t *testing.T, b *Bed) {
	outside := b.path("outside")
	check(t, os.Mkdir(outside, 0o755))
	check(t, os.WriteFile(outside+"/resolv.conf", []byte("of the host"), 0o644))
	check(t, b.Registry.Push("hostile:1", v1.Config{Env: []string{"PATH=/bin"},
		Volumes: map[string]struct{}{"/vol": {}, "/data": {}}}, hostile(outside), nil))
	p := b.pod(t, "hostile")
	id := p.run("main", func(c object) {
		c["image"] = object{"image": b.Registry.Host + "/hostile:1"}
		c["mounts"] = []object{{"container_path": "/ro", "host_path": outside, "readonly": true,
			"recursive_read_only": true}}
	}, "sh", "-c", "while true; do sleep 0.1; done")
	out := p.exec(id, "sh", "-c", `ls /many | wc -l; stat -c %a /setuid; cat /data/of-the-image;
		touch /ro/x || echo read-only; test -e /disk || echo no device; cat /etc/resolv.conf; touch /data/x /vol/x /dev/x && echo wrote`)
	for _, want := range []string{"3000\n4755\ntext", "read-only\nno device\n", "nameserver 10.1.2.3\n", "wrote"} {
		if !strings.Contains(out, want) {
			t.Errorf("want %q in %q", want, out)
		}
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) != 1 {
		t.Errorf("on the host: %v, %v", left, err)
	}
	_, err := b.Crictl(t.Context(), "", "rmp", "-f", p.id)
	check(t, err)
}

// testExecs checks that execs at once, floods that nobody reads, and an exec that hangs leave the
// pod as it was.
func testExecs(t *testing.T, b *Bed) {
	p := b.pod(t, "execs")
	id := p.run("main", nil, "sh", "-c", "while true; do sleep 1; done")
	var all sync.WaitGroup
	for i := range 24 {
		all.Go(func() {
			out, err := b.Crictl(t.Context(), "in", "exec", "-i", id, "sh", "-c",
				fmt.Sprintf("cat; echo %d; exit %d", i, i%2))
			if want := fmt.Sprintf("in%d", i); (err == nil) != (i%2 == 0) || i%2 == 0 && out != want {
				t.Errorf("exec %d: %q, %v", i, out, err)
			}
		})
	}
	_, err := b.Crictl(t.Context(), "", "exec", "-s", "--timeout", "1", id, "sh", "-c",
		"trap '' TERM; while true; do sleep 1; done")
	if err == nil || !strings.Contains(err.Error(), "timeout") {
		t.Errorf("an exec that hangs: %v", err)
	}
	all.Wait()
	eventually(t, "the end of all execs", func() error {
		out := p.exec(id, "ps", "-o", "args")
		if strings.Contains(out, "trap") || strings.Contains(out, "cat;") {
			return errors.New(out)
		}
		return nil
	})
	_, err = b.Crictl(t.Context(), "", "rmp", "-f", p.id)
	check(t, err)
}
