// Package vaulttest is a server that speaks the API of Vault's transit engine over TLS, for tests. It
// encrypts with versions of real keys, and fails as a test wants. Its texts are those of Vault's
// source.
package vaulttest

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// A Fault answers a request in place of the server, and reports whether it did.
type Fault func(w http.ResponseWriter, r *http.Request, body []byte) bool

// A Server is a Vault with one token and one transit engine. Its methods are safe for concurrent
// use.
type Server struct {
	URL       string
	CA        string // path of a PEM file
	Token     string
	TokenFile string // path of a file with Token
	Mount     string
	Namespace string // that requests have to name; empty: none

	http *httptest.Server

	mu       sync.Mutex
	keys     map[string]*key
	fault    Fault
	requests int
}

// A key is a named key of the engine.
type key struct {
	derived    bool
	versions   [][]byte // the first one is version 1
	minDecrypt int
}

// Serve starts a server that ends with the test. It has the engine "transit" without keys.
func Serve(t testing.TB) *Server {
	t.Helper()
	s, err := Start(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Away)
	return s
}

// Start is Serve for a caller that ends the server with Away. dir gets the files.
func Start(dir string) (*Server, error) {
	s := &Server{Mount: "transit", Token: "hvs.MARKERTOKEN" + rand.Text(), keys: map[string]*key{}}
	s.http = httptest.NewTLSServer(s)
	s.URL = s.http.URL
	s.CA, s.TokenFile = filepath.Join(dir, "ca.pem"), filepath.Join(dir, "token")
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.http.Certificate().Raw})
	for path, b := range map[string][]byte{s.CA: ca, s.TokenFile: []byte(s.Token + "\n")} {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			s.Away()
			return nil, err
		}
	}
	return s, nil
}

// Make makes a key.
func (s *Server) Make(name string, derived bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := &key{derived: derived, minDecrypt: 1}
	k.rotate()
	s.keys[name] = k
}

// Delete deletes a key.
func (s *Server) Delete(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.keys, name)
}

// MinDecrypt sets the key's min_decryption_version.
func (s *Server) MinDecrypt(name string, version int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys[name].minDecrypt = version
}

// Fail lets f answer all requests; nil: the server answers again. Connections that are in use stay.
func (s *Server) Fail(f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = f
}

// Requests returns the number of requests so far.
func (s *Server) Requests() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests
}

// Away ends the server for good: its address refuses connections.
func (s *Server) Away() {
	s.http.CloseClientConnections()
	s.http.Close()
}

func (k *key) rotate() {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // documented never to fail
	k.versions = append(k.versions, b)
}

// aead returns the cipher of a version.
func (k *key) aead(version int, context []byte) (cipher.AEAD, error) {
	b := k.versions[version-1]
	if k.derived {
		var err error
		if b, err = hkdf.Key(sha256.New, b, nil, string(context), 32); err != nil {
			return nil, err
		}
	}
	block, err := aes.NewCipher(b)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// A request has the fields of all operations.
type request struct {
	Plaintext  *string `json:"plaintext"`
	Ciphertext string  `json:"ciphertext"`
	Context    string  `json:"context"`
	context    []byte
}

// maxBody bounds a request in bytes.
const maxBody = 1 << 20

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return
	}
	s.mu.Lock()
	s.requests++
	fault := s.fault
	s.mu.Unlock()
	if fault != nil && fault(w, r, body) {
		return
	}
	data, status, err := s.answer(r, body)
	if err != nil {
		Refuse(w, status, err.Error())
		return
	}
	if data == nil {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"request_id": rand.Text(), "data": data})
}

// Refuse answers with a status and an error, in Vault's form.
func Refuse(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"errors": []string{text}})
}

// answer performs a request.
func (s *Server) answer(r *http.Request, body []byte) (data map[string]any, status int, err error) {
	if r.Header.Get("X-Vault-Token") != s.Token || r.Header.Get("X-Vault-Namespace") != s.Namespace {
		return nil, http.StatusForbidden, errors.New("permission denied")
	}
	path, ok := strings.CutPrefix(r.URL.Path, "/v1/"+s.Mount+"/")
	if !ok {
		return nil, http.StatusNotFound, errors.New(`no handler for route "` + r.URL.Path + `"`)
	}
	if r.Method != http.MethodPost && r.Method != http.MethodPut {
		return nil, http.StatusMethodNotAllowed, errors.New("unsupported operation")
	}
	var req request
	if err := json.Unmarshal(body, &req); err != nil {
		return nil, http.StatusBadRequest, errors.New("failed to parse JSON input")
	}
	if req.context, err = base64.StdEncoding.DecodeString(req.Context); err != nil {
		return nil, http.StatusBadRequest, errors.New("failed to base64-decode context")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if name, ok := strings.CutSuffix(path, "/rotate"); ok {
		k := s.keys[strings.TrimPrefix(name, "keys/")]
		if k == nil {
			return nil, http.StatusBadRequest, errors.New("key not found")
		}
		k.rotate()
		return map[string]any{"latest_version": len(k.versions)}, 0, nil
	}
	op, name, _ := strings.Cut(path, "/")
	k := s.keys[name]
	if k == nil {
		return nil, http.StatusBadRequest, errors.New("encryption key not found")
	}
	data, err = k.do(op, &req)
	return data, http.StatusBadRequest, err
}

// do performs an operation with a key.
func (k *key) do(op string, r *request) (map[string]any, error) {
	if k.derived && len(r.context) == 0 {
		return nil, errors.New("missing 'context' for key derivation; the key was created using a " +
			"derived key, which means additional, per-request information must be included in order " +
			"to perform operations with the key")
	}
	var plain []byte
	var err error
	switch op {
	case "encrypt":
		if r.Plaintext == nil {
			return nil, errors.New("missing plaintext to encrypt")
		}
		if plain, err = base64.StdEncoding.DecodeString(*r.Plaintext); err != nil {
			return nil, errors.New("failed to base64-decode plaintext")
		}
	case "decrypt", "rewrap":
		if plain, err = k.decrypt(r); err != nil {
			return nil, err
		}
	default:
		return nil, errors.New("unsupported path")
	}
	if op == "decrypt" {
		return map[string]any{"plaintext": base64.StdEncoding.EncodeToString(plain)}, nil
	}
	a, err := k.aead(len(k.versions), r.context)
	if err != nil {
		return nil, err
	}
	sealed := a.Seal(nil, nil, plain, nil)
	return map[string]any{"key_version": len(k.versions), "ciphertext": fmt.Sprintf("vault:v%d:%s",
		len(k.versions), base64.StdEncoding.EncodeToString(sealed))}, nil
}

func (k *key) decrypt(r *request) ([]byte, error) {
	rest, ok := strings.CutPrefix(r.Ciphertext, "vault:v")
	if !ok {
		return nil, errors.New("invalid ciphertext: no prefix")
	}
	digits, body, ok := strings.Cut(rest, ":")
	if !ok {
		return nil, errors.New("invalid ciphertext: wrong number of fields")
	}
	version, err := strconv.Atoi(digits)
	switch {
	case err != nil || version < 1:
		return nil, errors.New("invalid ciphertext: version number could not be decoded")
	case version > len(k.versions):
		return nil, errors.New("invalid ciphertext: version is too new")
	case version < k.minDecrypt:
		return nil, errors.New("ciphertext or signature version is disallowed by policy (too old)")
	}
	sealed, err := base64.StdEncoding.DecodeString(body)
	if err != nil {
		return nil, errors.New("invalid ciphertext: could not decode base64")
	}
	a, err := k.aead(version, r.context)
	if err != nil {
		return nil, err
	}
	plain, err := a.Open(nil, nil, sealed, nil)
	if err != nil {
		return nil, errors.New("cipher: message authentication failed")
	}
	return plain, nil
}
