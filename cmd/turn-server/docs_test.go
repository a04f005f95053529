package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"turnstone.dev/turnstone/internal/server/config"
)

// documented makes the certificates of docs/server.md with its commands, and returns their folder.
func documented(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/server.md")
	check(t, err)
	var script strings.Builder
	script.WriteString("set -eu\n")
	blocks := regexp.MustCompile("(?s)<!-- run: [a-z]+ -->\\s*```bash\n(.*?)```").
		FindAllStringSubmatch(string(page), -1)
	if len(blocks) != 2 {
		t.Fatalf("the page has %d blocks to run", len(blocks))
	}
	for _, b := range blocks {
		script.WriteString(b[1])
	}
	cmd := exec.Command("bash", "-c", script.String())
	cmd.Dir = t.TempDir()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return cmd.Dir
}

// TestDocumentedCertificates: what the page's commands make is what the settings need.
func TestDocumentedCertificates(t *testing.T) {
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip(err)
	}
	dir := documented(t)
	for _, name := range []string{config.Gateway, config.Controller, config.Node} {
		c := config.Config{TLS: config.TLS{Certificate: filepath.Join(dir, "tls.crt"),
			Key: filepath.Join(dir, "tls.key")}, Peers: config.Peers{
			Authority:   filepath.Join(dir, "ca.crt"),
			Certificate: filepath.Join(dir, name+".crt"), Key: filepath.Join(dir, name+".key")}}
		check(t, c.CheckFiles())
	}
}
