package registry

import (
	"net/url"
	"testing"
)

func FuzzParsePip(f *testing.F) {
	f.Add("text/html", []byte(`<a href="../x-1.0.tar.gz#sha256=00">x</a>`))
	f.Add(pipJSON, []byte(
		`{"files":[{"filename":"x-1.0.tar.gz","url":"x","hashes":{"sha256":"00"},"yanked":"why"}]}`))
	at, err := url.Parse("https://user:pw@example.com/simple/x/")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, kind string, b []byte) {
		files, err := parsePip("x", kind, b, at)
		if err != nil {
			return
		}
		for _, file := range files {
			if !plainFile(file.file) {
				t.Errorf("%q", file.file)
			}
			u, err := url.Parse(file.address)
			if err != nil || u.Scheme != "http" && u.Scheme != "https" {
				t.Errorf("%q: %v", file.address, err)
			}
			if err == nil && u.Host != at.Host && u.User != nil &&
				u.User.String() == at.User.String() && u.User.Username() == "user" {
				t.Errorf("the password goes to %s", u.Host)
			}
		}
	})
}

func FuzzParseNpm(f *testing.F) {
	f.Add([]byte(`{"dist-tags":{"latest":"1.0.0"},"versions":{"1.0.0":{"dist":{"tarball":"https://x/y.tgz","integrity":"sha512-AA=="}}}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		doc, err := parseNpm("@a/x", b)
		if err != nil {
			return
		}
		if _, err := doc.encode("http://10.0.2.2/t/npm/x/-/"); err != nil {
			t.Log(err)
		}
		doc.keep(map[string]NpmPackage{"1.0.0": {Tags: []string{"latest"}}})
		if len(doc.versions) > 1 {
			t.Error(doc.versions)
		}
	})
}
