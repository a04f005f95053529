// Package tlsfiles keeps certificates and authorities that are in files, and reads them again when
// the files change.
package tlsfiles

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"turnstone.dev/turnstone"
)

// checkEvery is the least time between two looks at the files.
const checkEvery = time.Second

// Files are PEM files: a certificate with its chain, its key, and authorities. All are optional,
// except that a certificate has a key.
type Files struct {
	Certificate, Key, Authority string
}

// A State is what files hold. It does not change.
type State struct {
	Certificate *tls.Certificate // nil: there is none
	Authority   *x509.CertPool   // nil: there is none
}

// A Watcher has the State of files. It is safe for concurrent use.
type Watcher struct {
	files  Files
	report func(error)

	mu     sync.Mutex
	state  *State
	stamps [3]stamp
	looked time.Time
	failed string // why the newest files are not in use, as it was reported; "" if they are
}

// A stamp tells a file from a changed one: it is of the file that links lead to.
type stamp struct {
	info os.FileInfo // nil: there is no file
	size int64
	time time.Time
}

func (s stamp) same(t stamp) bool {
	if s.info == nil || t.info == nil {
		return s.info == nil && t.info == nil
	}
	return os.SameFile(s.info, t.info) && s.size == t.size && s.time.Equal(t.time)
}

// Open reads the files. report gets errors of reading them again, after which the last State stays
// in use; it may be nil. The error is of kind Invalid, and holds nothing of the key.
func Open(files Files, report func(error)) (*Watcher, error) {
	if report == nil {
		report = func(error) {}
	}
	w := &Watcher{files: files, report: report}
	return w, w.Reload()
}

// Reload reads the files now. After an error the last State stays in use.
func (w *Watcher) Reload() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.reload(w.stamp())
}

// State returns the newest State. A look at the files is at most a second old.
func (w *Watcher) State() *State {
	w.mu.Lock()
	defer w.mu.Unlock()
	if now := time.Now(); now.Sub(w.looked) >= checkEvery || now.Before(w.looked) {
		w.looked = now
		w.look()
	}
	return w.state
}

// look reads the files if they have changed, or could not be used before: they may have been
// unreadable only for a moment. A problem is reported once. The caller holds mu.
func (w *Watcher) look() {
	stamps := w.stamp()
	if w.failed == "" && slices.EqualFunc(stamps[:], w.stamps[:], stamp.same) {
		return
	}
	err := w.reload(stamps)
	if err == nil {
		w.failed = ""
	} else if text := err.Error(); text != w.failed {
		w.failed = text
		w.report(err)
	}
}

// reload reads the files, and remembers their stamps, which were taken before. The caller holds mu.
func (w *Watcher) reload(stamps [3]stamp) error {
	w.stamps = stamps
	s := &State{}
	if w.files.Certificate != "" {
		c, err := tls.LoadX509KeyPair(w.files.Certificate, w.files.Key)
		if err != nil {
			return failed(w.files.Certificate, err)
		}
		s.Certificate = &c
	}
	if w.files.Authority != "" {
		b, err := os.ReadFile(w.files.Authority)
		s.Authority = x509.NewCertPool()
		if err == nil && !s.Authority.AppendCertsFromPEM(b) {
			err = errors.New("has no certificate as PEM")
		}
		if err != nil {
			return failed(w.files.Authority, err)
		}
	}
	w.state = s
	return nil
}

func failed(path string, err error) error {
	return turnstone.NewError("server.tls", turnstone.KindInvalid, path, err).
		WithHint("check the files with turn serve --check-config")
}

func (w *Watcher) stamp() (all [3]stamp) {
	for n, path := range []string{w.files.Certificate, w.files.Key, w.files.Authority} {
		if path == "" {
			continue
		}
		if info, err := os.Stat(path); err == nil {
			all[n] = stamp{info, info.Size(), info.ModTime()}
		}
	}
	return all
}

// Server returns the configuration of a server with the certificate. protocols are those of ALPN.
func (w *Watcher) Server(protocols ...string) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: protocols,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			if c := w.State().Certificate; c != nil {
				return c, nil
			}
			return nil, fmt.Errorf("there is no certificate")
		}}
}
