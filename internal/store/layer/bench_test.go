package layer_test

import (
	"fmt"
	"testing"

	"turnstone.dev/turnstone/internal/store/layer"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
)

// BenchmarkUntouched is a turn without changes, on a tree with a large /etc.
func BenchmarkUntouched(b *testing.B) {
	all := map[string]string{"/etc/hostname": "template"}
	for i := range 300 {
		all[fmt.Sprintf("/etc/file-%d", i)] = "text"
		all[fmt.Sprintf("/usr/%d/file", i)] = "text"
	}
	w := treetest.NewStore()
	ref := build(b, w, files(all))
	upper := files(map[string]string{"/etc/hostname": "sandbox", "/etc/hosts": "127.0.0.1"})
	b.ReportAllocs()
	for b.Loop() {
		if got, _ := apply(b, w, ref, upper, layer.Options{Skip: skip}); got != ref {
			b.Fatal(got)
		}
	}
}

// BenchmarkSmallFiles is a turn that wrote 20,000 files; storing them is not measured.
func BenchmarkSmallFiles(b *testing.B) {
	all := map[string]string{}
	for i := range 20_000 {
		all[fmt.Sprintf("/src/%d/%d.go", i/50, i)] = fmt.Sprint("package p", i)
	}
	upper := files(all)
	w := treetest.NewStore()
	ref := build(b, w, files(nil))
	for b.Loop() {
		apply(b, w, ref, upper, layer.Options{})
	}
}
