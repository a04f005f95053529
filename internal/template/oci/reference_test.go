package oci

import (
	"strings"
	"testing"

	"turnstone.dev/turnstone"
)

const someDigest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func TestReferences(t *testing.T) {
	for _, c := range []struct{ in, registry, repository, asked, out string }{
		{"python:3.12", "index.docker.io", "python", "index.docker.io/library/python:3.12",
			"python:3.12"},
		{"docker.io/library/python:3.12", "index.docker.io", "python",
			"index.docker.io/library/python:3.12", "python:3.12"},
		{"org/x", "index.docker.io", "org/x", "index.docker.io/org/x:latest", "org/x:latest"},
		{"ghcr.io/org/x@" + someDigest, "ghcr.io", "ghcr.io/org/x", "ghcr.io/org/x@" + someDigest,
			"ghcr.io/org/x@" + someDigest},
		{"python:3.12@" + someDigest, "index.docker.io", "python",
			"index.docker.io/library/python@" + someDigest, "python:3.12@" + someDigest},
		{"localhost:5000/x:tag", "localhost:5000", "localhost:5000/x", "localhost:5000/x:tag",
			"localhost:5000/x:tag"},
		{"localhost:5000/x", "localhost:5000", "localhost:5000/x", "localhost:5000/x:latest",
			"localhost:5000/x:latest"},
	} {
		r, err := ParseReference(c.in)
		if err != nil {
			t.Errorf("%s: %v", c.in, err)
			continue
		}
		if r.Registry() != c.registry || r.Repository() != c.repository ||
			r.asked().Name() != c.asked || r.String() != c.out {
			t.Errorf("%s: registry %s, repository %s, asked %s, string %s", c.in, r.Registry(),
				r.Repository(), r.asked().Name(), r)
		}
		if again, err := ParseReference(r.String()); err != nil || again != r {
			t.Errorf("%s: read again it is %v, %v", c.in, again, err)
		}
	}
}

func TestReferencesRefused(t *testing.T) {
	for _, in := range []string{"", ":", "@", "Python:3.12", "x@sha256:12", "x@md5:00", "x:",
		"../x:1", "x y:1", "http://x/y:1",
		"x:\x00", "a/b@" + someDigest + "@" + someDigest, strings.Repeat("a/", 300) + "x"} {
		if r, err := ParseReference(in); turnstone.KindOf(err) != turnstone.KindInvalid ||
			turnstone.HintOf(err) == "" {
			t.Errorf("%q: %v, %v", in, r, err)
		}
	}
}

func TestLoopback(t *testing.T) {
	for in, want := range map[string]bool{"localhost:5000/x:1": true, "127.0.0.1:5000/x:1": true,
		"127.1.2.3:80/x:1": true, "[::1]:5000/x:1": true,
		"reg.localhost:5000/x:1": true, "10.0.0.1:5000/x:1": false,
		"localhost.example.org/x:1": false, "x:1": false, "192.168.0.1/x:1": false} {
		r, err := ParseReference(in)
		if err != nil {
			t.Fatal(in, err)
		}
		if r.loopback() != want {
			t.Errorf("%s: loopback is %v", in, r.loopback())
		}
	}
}

// FuzzReference checks that each valid reference has one form with the same meaning.
func FuzzReference(f *testing.F) {
	for _, s := range []string{"python:3.12", "a/b@" + someDigest, "[::1]:5/x:1", "localhost/x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseReference(s)
		if err != nil {
			return
		}
		again, err := ParseReference(r.String())
		if err != nil || again != r {
			t.Fatalf("%q is %q, which read again is %q, %v", s, r, again, err)
		}
	})
}
