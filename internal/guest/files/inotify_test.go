package files

import (
	"strings"
	"testing"
)

// FuzzInotify checks that any bytes are parsed within bounds.
func FuzzInotify(f *testing.F) {
	event := make([]byte, 32)
	event[0], event[5], event[12] = 1, 1, 16
	copy(event[16:], "name")
	f.Add(event)
	f.Add(append(event[:16:16], 0xff, 0xff))
	f.Fuzz(func(t *testing.T, b []byte) {
		w := &watch{root: "/x", dirs: map[int32]string{1: "/x"}}
		e := &changes{w: w}
		e.read(b)
		for _, c := range e.list {
			if !strings.HasPrefix(c.Path, "/") || len(c.Path) > len(b)+3 {
				t.Errorf("%q", c.Path)
			}
		}
	})
}
