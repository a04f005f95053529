// Package hostca finds the certificate authorities that a host trusts in addition to the public
// authorities, such as a company proxy's. It reads certificates only, never keys.
package hostca

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/crypto/x509roots/fallback/bundle"

	"turnstone.dev/turnstone/internal/brief"
	"turnstone.dev/turnstone/internal/filestamp"
)

// Where a guest finds certificates.
const (
	// GuestPath has the certificates that a guest is to trust, when they are others than those of
	// its image. It lies on no disk, and so in no state.
	GuestPath = "/run/turnstone/ca-certificates.crt"
	// GuestBundle has the certificates that Debian trusts.
	GuestBundle = "/etc/ssl/certs/ca-certificates.crt"
)

// Limits for reading from a host.
const (
	maxFile  = 4 << 20 // bytes of a file
	maxFiles = 1000    // files in the folders of SSL_CERT_DIR
	maxOwn   = 200     // returned certificates
)

// systemFiles are the files in which distributions store all trusted certificates of the host.
var systemFiles = []string{"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
	"/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"}

// systemDirs are folders with the certificates of systemFiles in separate files.
var systemDirs = []string{"/etc/ssl/certs", "/etc/pki/tls/certs"}

// stock are the distributions' own public authorities, some of which Mozilla has dropped since.
var stock = []string{"/usr/share/ca-certificates/mozilla/*",
	"/usr/share/pki/ca-trust-source/ca-bundle.trust.p11-kit",
	"/usr/share/pki/trust/ca-certificates-mozilla.trust.p11-kit"}

// A Host is the system whose certificates are read. The zero Host is this process's system.
type Host struct {
	Root   string                   // prefix of the distributions' paths
	Getenv func(name string) string // nil: os.Getenv
	// Cache is a file that stores the result of Own, because computing it takes some 10 ms; empty:
	// no cache. The file may be removed at any time.
	Cache string
}

func (h Host) getenv(name string) string {
	if h.Getenv != nil {
		return h.Getenv(name)
	}
	return os.Getenv(name)
}

// Bundle returns all certificates that the host trusts as PEM, and their file: the file in
// SSL_CERT_FILE, or else the distribution's file. It returns nil if there is none.
func (h Host) Bundle() (text []byte, path string) {
	if path := h.getenv("SSL_CERT_FILE"); path != "" {
		if b := read(path); b != nil {
			return b, path
		}
	}
	for _, path := range systemFiles {
		path = filepath.Join("/", h.Root, path)
		if b := read(path); b != nil {
			return b, path
		}
	}
	return nil, ""
}

// path returns the file that Bundle most likely reads, with links resolved.
func (h Host) path() string {
	paths := []string{h.getenv("SSL_CERT_FILE")}
	for _, path := range systemFiles {
		paths = append(paths, filepath.Join("/", h.Root, path))
	}
	for _, path := range paths {
		if path == "" {
			continue
		}
		if real, err := filepath.EvalSymlinks(path); err == nil {
			if fi, err := os.Stat(real); err == nil && fi.Mode().IsRegular() {
				return real
			}
		}
	}
	return ""
}

// read returns the content of a file with certificates, or nil.
func read(path string) []byte {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() || fi.Size() > maxFile {
		return nil
	}
	b, err := io.ReadAll(io.LimitReader(f, maxFile))
	if err != nil || !bytes.Contains(b, []byte("BEGIN CERTIFICATE")) {
		return nil
	}
	return b
}

// Own returns the certificates that the host trusts, from Bundle and from the folders in
// SSL_CERT_DIR, except public authorities (Mozilla's) and authorities that came with the
// distribution. It returns each certificate once and skips unreadable and malformed files.
func (h Host) Own() []*x509.Certificate {
	before := h.path()
	if own, ok := h.remembered(before); ok {
		return own
	}
	st, stampErr := filestamp.Quick(before)
	f := &finder{seen: map[[sha256.Size]byte]bool{}}
	for root := range bundle.Roots() {
		f.seen[sha256.Sum256(root.Certificate)] = true
	}
	text, _ := h.Bundle()
	f.add(text)
	if dirs := h.dirs(); len(dirs) > 0 {
		f.addDirs(dirs)
	}
	if len(f.found) > 0 {
		f.dropStock(h.Root)
	}
	var own []*x509.Certificate
	for _, der := range f.found {
		if c, err := x509.ParseCertificate(der); err == nil && len(own) < maxOwn {
			own = append(own, c)
		}
	}
	if stampErr == nil {
		h.remember(memory{before, st, PEM(own)})
	}
	return own
}

// dirs returns the folders in SSL_CERT_DIR whose certificates are not in the bundle.
func (h Host) dirs() (dirs []string) {
	for _, dir := range filepath.SplitList(h.getenv("SSL_CERT_DIR")) {
		if dir != "" && !isSystem(dir) {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// A finder collects certificates.
type finder struct {
	seen  map[[sha256.Size]byte]bool
	found [][]byte
}

func (f *finder) add(text []byte) {
	for der := range certificates(text) {
		if sum := sha256.Sum256(der); !f.seen[sum] && len(f.found) < maxFiles {
			f.seen[sum] = true
			f.found = append(f.found, der)
		}
	}
}

func (f *finder) addDirs(dirs []string) {
	left := maxFiles
	for _, dir := range dirs {
		entries, _ := os.ReadDir(dir) // an unreadable folder has no certificates
		for _, e := range entries {
			if left--; left < 0 {
				return
			}
			f.add(read(filepath.Join(dir, e.Name())))
		}
	}
}

// dropStock removes the certificates of the distribution.
func (f *finder) dropStock(root string) {
	came, left := map[[sha256.Size]byte]bool{}, maxFiles
	for _, pattern := range stock {
		// fails only for a malformed pattern
		paths, _ := filepath.Glob(filepath.Join("/", root, pattern))
		for _, path := range paths {
			if left--; left < 0 {
				break
			}
			for der := range certificates(read(path)) {
				came[sha256.Sum256(der)] = true
			}
		}
	}
	f.found = slices.DeleteFunc(f.found, func(der []byte) bool { return came[sha256.Sum256(der)] })
}

// certificates yields the certificates in text, which is PEM.
func certificates(text []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for len(text) > 0 {
			var block *pem.Block
			if block, text = pem.Decode(text); block == nil ||
				block.Type == "CERTIFICATE" && !yield(block.Bytes) {
				return
			}
		}
	}
}

// A memory is a stored result of Own together with its source file.
type memory struct {
	Path  string          `json:"path"`
	Stamp filestamp.Stamp `json:"stamp"`
	Own   []byte          `json:"own"` // PEM
}

// remembered returns the stored result of Own if it is still valid.
func (h Host) remembered(path string) ([]*x509.Certificate, bool) {
	if h.Cache == "" || path == "" || len(h.dirs()) > 0 {
		return nil, false
	}
	var m memory
	if b, err := os.ReadFile(h.Cache); err != nil || json.Unmarshal(b, &m) != nil ||
		m.Path != path || !m.Stamp.Fresh(path) {
		return nil, false
	}
	var own []*x509.Certificate
	for der := range certificates(m.Own) {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, false
		}
		own = append(own, c)
	}
	return own, true
}

// remember stores the result of Own. A failure only costs time.
func (h Host) remember(m memory) {
	if h.Cache == "" || len(h.dirs()) > 0 {
		return
	}
	if b, err := json.Marshal(m); err == nil {
		_ = filestamp.WriteFile(h.Cache, b, 0o600)
	}
}

func isSystem(dir string) bool {
	for _, s := range systemDirs {
		if filepath.Clean(dir) == s {
			return true
		}
	}
	return false
}

// PEM encodes certificates as PEM, each after its name.
func PEM(certs []*x509.Certificate) []byte {
	var b bytes.Buffer
	for _, c := range certs {
		_, _ = b.WriteString("# " + Name(c) + "\n")
		_ = pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
	}
	return b.Bytes()
}

// Name returns the name of a certificate's owner on a single line.
func Name(c *x509.Certificate) string {
	name := c.Subject.CommonName
	if name == "" && len(c.Subject.Organization) > 0 {
		name = c.Subject.Organization[0]
	}
	if name == "" {
		return "an authority without a name"
	}
	name = strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(name, " "))
	return brief.Clip(name, 80)
}
