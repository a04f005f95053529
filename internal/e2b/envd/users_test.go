package envd

import (
	"path"
	"strings"
	"testing"
)

func TestResolve(t *testing.T) {
	v := visitor{home: "/home/user"}
	for name, want := range map[string]string{"a": "/home/user/a", "": "/home/user", "~": "/home/user",
		"~/a": "/home/user/a", "/a/../b": "/b", "../../..": "/", "/": "/", ".": "/home/user"} {
		if got, err := v.resolve(name); got != want || err != nil {
			t.Errorf("%q: %q %v, want %q", name, got, err, want)
		}
	}
	for _, name := range []string{"a\x00b", "~other/x", strings.Repeat("x", maxPath)} {
		if got, err := v.resolve(name); err == nil {
			t.Errorf("%.20q: %.20q is accepted", name, got)
		}
	}
}

// FuzzPasswd parses a file of a hostile guest, and resolves a hostile path.
func FuzzPasswd(f *testing.F) {
	f.Add("root:x:0:0:root:/root:/bin/bash\nuser:x:1000:1000::/home/user:/bin/sh\n", "a/../b")
	f.Add("a:x:4294967296:0::relative:/bin/sh\n:::::\n", "~")
	f.Fuzz(func(t *testing.T, text, name string) {
		parseGroups(text)
		for _, a := range parsePasswd(text) {
			if a.name == "" || !path.IsAbs(a.home) || strings.ContainsRune(a.home, 0) || a.uid < 0 {
				t.Fatalf("%+v", a)
			}
			if full, err := (visitor{home: a.home}).resolve(name); err == nil && !path.IsAbs(full) {
				t.Fatalf("%q is not absolute", full)
			}
		}
	})
}
