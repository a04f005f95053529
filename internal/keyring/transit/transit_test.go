package transit_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/keyring"
	"turnstone.dev/turnstone/internal/keyring/agewrap"
	"turnstone.dev/turnstone/internal/keyring/transit"
	"turnstone.dev/turnstone/internal/keyring/vaulttest"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/store/seal"
)

var marker = []byte("MARKERMARKERMARKERMARKERMARKER!!")

// vault returns a wrapper with the key "turnstone" of a server.
func vault(t *testing.T, s *vaulttest.Server, change ...func(*transit.Options)) *transit.Wrapper {
	t.Helper()
	o := transit.Options{Address: s.URL, CA: s.CA, Key: "turnstone", Namespace: s.Namespace,
		Token: transit.TokenFile(s.TokenFile), Timeout: 30 * time.Second}
	for _, f := range change {
		f(&o)
	}
	w, err := transit.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

func serve(t *testing.T) *vaulttest.Server {
	t.Helper()
	s := vaulttest.Serve(t)
	s.Make("turnstone", true)
	return s
}

func wrap(t *testing.T, w keyring.Wrapper, id keyring.ID) keyring.Wrapping {
	t.Helper()
	one, err := w.Wrap(t.Context(), id, bytes.Clone(marker))
	if err != nil {
		t.Fatal(err)
	}
	return one
}

func unwraps(t *testing.T, w keyring.Wrapper, id keyring.ID, one keyring.Wrapping) {
	t.Helper()
	if s, err := w.Unwrap(t.Context(), id, one); err != nil || !bytes.Equal(s, marker) {
		t.Errorf("%d bytes, %v", len(s), err)
	}
}

func TestVault(t *testing.T) {
	for _, derived := range []bool{false, true} {
		t.Run(fmt.Sprint("derived ", derived), func(t *testing.T) {
			s := vaulttest.Serve(t)
			s.Make("turnstone", derived)
			testVault(t, vault(t, s), derived)
		})
	}
}

// TestRealVault is TestVault with a Vault of the environment, whose engine "transit" has the keys
// turnstone-derived, made with derived=true, and turnstone-plain.
func TestRealVault(t *testing.T) {
	address, token := os.Getenv("TURNSTONE_TEST_VAULT"), os.Getenv("TURNSTONE_TEST_VAULT_TOKEN")
	if address == "" {
		t.Skip("TURNSTONE_TEST_VAULT, TURNSTONE_TEST_VAULT_TOKEN and, for TLS, TURNSTONE_TEST_VAULT_CA " +
			"name no Vault")
	}
	for name, derived := range map[string]bool{"turnstone-derived": true, "turnstone-plain": false} {
		w, err := transit.New(transit.Options{Address: address, Key: name,
			CA: os.Getenv("TURNSTONE_TEST_VAULT_CA"), Timeout: time.Minute,
			Token: func() (string, error) { return token, nil }})
		if err != nil {
			t.Fatal(err)
		}
		testVault(t, w, derived)
		missing, err := transit.New(transit.Options{Address: address, Key: "turnstone-missing",
			CA: os.Getenv("TURNSTONE_TEST_VAULT_CA"), Timeout: time.Minute,
			Token: func() (string, error) { return token, nil }})
		if err != nil {
			t.Fatal(err)
		}
		one := wrap(t, w, keyring.ID{1})
		if _, err := missing.Unwrap(t.Context(), keyring.ID{1}, one); turnstone.KindOf(err) !=
			turnstone.KindNotFound {
			t.Errorf("a missing key: %v", err)
		}
	}
}

// testVault tests a wrapping key of a Vault, which it rotates.
func testVault(t *testing.T, w *transit.Wrapper, derived bool) {
	t.Helper()
	id := keyring.ID{1}
	one := wrap(t, w, id)
	if !strings.HasPrefix(string(one.Data), "vault:v") || bytes.Contains(one.Data, marker[:6]) {
		t.Errorf("wrapped as %q", one.Data)
	}
	unwraps(t, w, id, one)
	newest, err := w.Newest(t.Context())
	if err != nil || newest != one.Name {
		t.Errorf("newest is %q, %v; wrapped by %q", newest, err, one.Name)
	}
	name, err := w.Rotate(t.Context())
	if err != nil || name == newest {
		t.Errorf("rotated from %s to %s, %v", newest, name, err)
	}
	unwraps(t, w, id, one)
	two, err := w.Rewrap(t.Context(), id, one)
	if err != nil || two.Name != name {
		t.Fatalf("rewrapped by %q, %v", two.Name, err)
	}
	unwraps(t, w, id, two)
	// another domain's context
	s, err := w.Unwrap(t.Context(), keyring.ID{2}, two)
	if derived && turnstone.KindOf(err) != turnstone.KindIntegrity || !derived && err != nil {
		t.Errorf("another domain: %d bytes, %v", len(s), err)
	}
	for name, data := range map[string]string{"changed": string(two.Data[:len(two.Data)-4]) + "AAAA",
		"cut": "vault:v1:", "other": "x", "version": "vault:v99" + string(two.Data[8:])} {
		bad := two
		bad.Data = []byte(data)
		_, err := w.Unwrap(t.Context(), id, bad)
		kind := turnstone.KindIntegrity
		if name == "version" {
			kind = turnstone.KindNotFound
		}
		if turnstone.KindOf(err) != kind || turnstone.HintOf(err) == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// answers returns a fault that answers with a status and a text.
func answers(status int, text string) vaulttest.Fault {
	return func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
		w.WriteHeader(status)
		_, _ = w.Write([]byte(text))
		return true
	}
}

// refuses returns a fault in the form of Vault's errors.
func refuses(status int, text string) vaulttest.Fault {
	return func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
		vaulttest.Refuse(w, status, text)
		return true
	}
}

// TestFaults: every fault is an error with a kind, words and a hint that fit, in every operation,
// and holds neither the token nor the key, also if the server sends the request back.
func TestFaults(t *testing.T) {
	plain := base64.StdEncoding.EncodeToString(marker)
	for name, c := range map[string]struct {
		fault vaulttest.Fault
		kind  turnstone.Kind
		text  string
		hint  string
	}{
		"sealed": {refuses(503, "Vault is sealed"), turnstone.KindUnavailable, "is sealed", "unseal"},
		"broken": {refuses(500, "internal error"), turnstone.KindUnavailable, "status 500", "see whether"},
		"403":    {refuses(403, "permission denied"), turnstone.KindDenied, "refuses the token", "renew"},
		"404":    {refuses(404, "no handler"), turnstone.KindNotFound, "no transit engine", "vault.mount"},
		"rate":   {refuses(429, "request path: rate limit quota exceeded"), turnstone.KindExhausted, "limits the rate", "quota"},
		"lost":   {refuses(400, "encryption key not found"), turnstone.KindNotFound, "has no key turnstone", "restore"},
		"old": {refuses(400, "ciphertext or signature version is disallowed by policy (too old)"),
			turnstone.KindDenied, "old version", "min_decryption_version"},
		"newer": {refuses(400, "invalid ciphertext: version is too new"), turnstone.KindNotFound, "version", "backup"},
		"wrong": {refuses(400, "cipher: message authentication failed"), turnstone.KindIntegrity, "cannot decrypt", ""},
		"signing key": {refuses(400, "message decryption not supported for key type ed25519"),
			turnstone.KindInvalid, "does not encrypt", "aes256-gcm96"},
		"other 400": {refuses(400, "no"), turnstone.KindInvalid, "rejects", "vault.key"},
		"418":       {answers(418, "teapot"), turnstone.KindUnavailable, "status 418", ""},
		"redirect": {func(w http.ResponseWriter, r *http.Request, _ []byte) bool {
			http.Redirect(w, r, "https://127.0.0.1:1/other", http.StatusTemporaryRedirect)
			return true
		}, turnstone.KindUnavailable, "redirects", "vault.address"},
		"empty":        {answers(200, ""), turnstone.KindUnavailable, "not an answer", ""},
		"web page":     {answers(200, "<html>hello</html>"), turnstone.KindUnavailable, "not an answer", ""},
		"no data":      {answers(200, "{}"), turnstone.KindUnavailable, "not an answer", ""},
		"other types":  {answers(200, `{"data":{"ciphertext":5,"plaintext":5}}`), turnstone.KindUnavailable, "not an answer", ""},
		"no base64":    {answers(200, `{"data":{"ciphertext":"x","plaintext":"!"}}`), turnstone.KindUnavailable, "not an answer", ""},
		"huge":         {answers(200, strings.Repeat(" ", 1<<20)), turnstone.KindUnavailable, "not an answer", ""},
		"400 of a web": {answers(400, "<html>"), turnstone.KindUnavailable, "not an answer", ""},
		"breaks": {func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
			panic(http.ErrAbortHandler)
		}, turnstone.KindUnavailable, "does not answer", "see whether"},
		"echo": {func(w http.ResponseWriter, r *http.Request, body []byte) bool {
			vaulttest.Refuse(w, 400, r.Header.Get("X-Vault-Token")+string(body))
			return true
		}, turnstone.KindInvalid, "rejects", ""},
		"raw echo": {func(w http.ResponseWriter, r *http.Request, body []byte) bool {
			c, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				_, _ = fmt.Fprintf(c, "%s %s\r\n\r\n", body, r.Header.Get("X-Vault-Token"))
				_ = c.Close()
			}
			return true
		}, turnstone.KindUnavailable, "does not answer", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t)
			id := keyring.ID{1}
			one := wrap(t, vault(t, s), id)
			s.Fail(c.fault)
			for op, do := range map[string]func(w *transit.Wrapper) error{
				"wrap": func(w *transit.Wrapper) error {
					_, err := w.Wrap(t.Context(), id, bytes.Clone(marker))
					return err
				},
				"unwrap": func(w *transit.Wrapper) error {
					_, err := w.Unwrap(t.Context(), id, one)
					return err
				},
				"rewrap": func(w *transit.Wrapper) error {
					_, err := w.Rewrap(t.Context(), id, one)
					return err
				},
				"rotate": func(w *transit.Wrapper) error {
					_, err := w.Rotate(t.Context())
					return err
				},
			} {
				w := vault(t, s)
				err := do(w)
				if err == nil {
					t.Errorf("%s succeeds", op)
					continue
				}
				if turnstone.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.text) ||
					!strings.Contains(turnstone.HintOf(err), c.hint) {
					t.Errorf("%s: %s: %v (%s)", op, turnstone.KindOf(err), err, turnstone.HintOf(err))
				}
				if !strings.Contains(err.Error(), s.URL) {
					t.Errorf("%s: %v does not name the Vault", op, err)
				}
				text := fmt.Sprintf("%v %+v %#v %s", err, err, w, turnstone.HintOf(err))
				for _, secret := range []string{s.Token, "MARKERTOKEN", "MARKERM", plain[:20]} {
					if strings.Contains(text, secret) {
						t.Errorf("%s: the error has %q: %s", op, secret, text)
					}
				}
			}
			s.Fail(nil)
			unwraps(t, vault(t, s), id, one)
		})
	}
}

func TestAddresses(t *testing.T) {
	s := serve(t)
	id := keyring.ID{1}
	one := wrap(t, vault(t, s), id)
	err := func(change func(*transit.Options)) error {
		_, err := vault(t, s, change).Unwrap(t.Context(), id, one)
		return err
	}
	for _, c := range []struct {
		change func(*transit.Options)
		text   string
	}{
		{func(o *transit.Options) { o.CA = "" }, "certificate that is not trusted"},
		{func(o *transit.Options) { o.Address = strings.Replace(s.URL, "https", "http", 1) }, "status 400"},
		{func(o *transit.Options) { o.Address = "https://vault.invalid:8200" }, "name is not found"},
	} {
		got := err(c.change)
		if c.text == "status 400" {
			c.text = "not an answer" // a TLS server says so in plain HTTP
		}
		if turnstone.KindOf(got) != turnstone.KindUnavailable || turnstone.HintOf(got) == "" ||
			!strings.Contains(got.Error(), c.text) {
			t.Errorf("%v, want %q", got, c.text)
		}
	}
	s.Away()
	if got := err(func(*transit.Options) {}); turnstone.KindOf(got) != turnstone.KindUnavailable ||
		!strings.Contains(got.Error(), "connection refused") {
		t.Errorf("no server: %v", got)
	}
	token := func() (string, error) { return "x", nil }
	for _, o := range []transit.Options{
		{Address: "vault.example.org", Key: "k", Token: token},
		{Address: "http://vault.example.org", Key: "k", Token: token},
		{Address: "https://user:MARKER@vault.example.org", Key: "k", Token: token},
		{Address: "https://vault.example.org/v1", Key: "k", Token: token},
		{Address: "https://vault.example.org", Token: token},
		{Address: "https://vault.example.org", Key: "..", Token: token},
		{Address: "https://vault.example.org", Key: "a/b", Token: token},
		{Address: "https://vault.example.org", Key: "k", Mount: "a//b", Token: token},
		{Address: "https://vault.example.org", Key: "k", Mount: "../sys", Token: token},
		{Address: "https://vault.example.org", Key: "k", Namespace: "a\nb", Token: token},
		{Address: "https://vault.example.org", Key: "k"},
		{Address: "https://vault.example.org", Key: "k", CA: "/dev/null", Token: token},
	} {
		if _, err := transit.New(o); turnstone.KindOf(err) != turnstone.KindInvalid ||
			turnstone.HintOf(err) == "" || strings.Contains(err.Error(), "MARKER") {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if _, err := transit.New(transit.Options{Address: "http://127.0.0.1:8200", Key: "k", Token: token}); err != nil {
		t.Errorf("a Vault of this machine: %v", err)
	}
}

func TestTokenFile(t *testing.T) {
	s := serve(t)
	s.Namespace = "team-a/b"
	w := vault(t, s)
	one := wrap(t, w, keyring.ID{})
	if one.Name != "team-a/b:transit/turnstone#1" {
		t.Errorf("the name is %s", one.Name)
	}
	s.Token = "hvs.renewed"
	if _, err := w.Unwrap(t.Context(), keyring.ID{}, one); turnstone.KindOf(err) != turnstone.KindDenied {
		t.Errorf("a revoked token: %v", err)
	}
	if err := os.WriteFile(s.TokenFile, []byte(s.Token), 0o600); err != nil {
		t.Fatal(err)
	}
	unwraps(t, w, keyring.ID{}, one) // Vault's agent has renewed it
	for _, mode := range []os.FileMode{0o604, 0o602} {
		if err := os.Chmod(s.TokenFile, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Unwrap(t.Context(), keyring.ID{}, one); turnstone.KindOf(err) !=
			turnstone.KindInvalid || !strings.Contains(err.Error(), "all users") {
			t.Errorf("a file that all can read: %v", err)
		}
	}
	path := filepath.Join(t.TempDir(), "token")
	for _, bad := range []string{"", "two words", "a\nb", strings.Repeat("x", 5000), "é"} {
		if err := os.WriteFile(path, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := transit.TokenFile(path)(); turnstone.KindOf(err) != turnstone.KindInvalid ||
			bad != "" && strings.Contains(err.Error(), bad) {
			t.Errorf("%.20q: %v", bad, err)
		}
	}
	if _, err := transit.TokenFile(path + "x")(); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Errorf("no file: %v", err)
	}
}

// TestTriesAgain: a fault that is over soon is none, and a rotation is never asked for twice.
func TestTriesAgain(t *testing.T) {
	s := serve(t)
	w := vault(t, s)
	var left atomic.Int64
	once := func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
		if left.Add(-1) < 0 {
			return false
		}
		vaulttest.Refuse(w, http.StatusBadGateway, "x")
		return true
	}
	left.Store(2)
	s.Fail(once)
	unwraps(t, w, keyring.ID{1}, wrap(t, w, keyring.ID{1}))
	left.Store(1)
	before := s.Requests()
	if _, err := w.Rotate(t.Context()); turnstone.KindOf(err) != turnstone.KindUnavailable ||
		s.Requests() != before+1 {
		t.Errorf("%d requests, %v", s.Requests()-before, err)
	}
	left.Store(1)
	s.Fail(func(w http.ResponseWriter, r *http.Request, b []byte) bool {
		if left.Add(-1) < 0 {
			return false
		}
		w.Header().Set("Retry-After", "1")
		vaulttest.Refuse(w, http.StatusTooManyRequests, "slow down")
		return true
	})
	wrap(t, w, keyring.ID{1})
}

// ring returns a ring whose primary wrapper is a Vault, and that also has the file keyring.
func ring(t *testing.T, dir *statedir.Dir, w keyring.Wrapper) *keyring.Ring {
	t.Helper()
	r, err := keyring.New(keyring.Options{Dir: dir, Primary: keyring.KindVault,
		Wrappers: map[keyring.Kind]keyring.Wrapper{keyring.KindVault: w,
			keyring.KindFile: agewrap.NewFile(dir, nil, nil)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// TestManyWhileAway: while Vault hangs, 1,000 callers with a domain each fail after the time of one
// request, a domain in memory and one of another wrapper open, and when Vault is there again, all
// do.
func TestManyWhileAway(t *testing.T) {
	s := serve(t)
	dir := &statedir.Dir{Root: t.TempDir()}
	maker := ring(t, dir, vault(t, s))
	var ids []keyring.ID
	for range 1000 {
		o, err := maker.Create(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		o.Close()
		ids = append(ids, o.ID())
	}
	const requests = 8
	r := ring(t, dir, vault(t, s, func(o *transit.Options) {
		o.Timeout, o.Pause, o.Requests = 5*time.Second, time.Hour, requests
	}))
	file, err := r.CreateBy(t.Context(), keyring.KindFile, agewrap.NewFile(dir, nil, nil))
	if err != nil {
		t.Fatal(err)
	}
	file.Close()
	r.Forget(file.ID())
	cached, err := r.Create(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	cached.Close()
	release := make(chan struct{})
	s.Fail(func(_ http.ResponseWriter, r *http.Request, _ []byte) bool {
		select {
		case <-release:
			return false
		case <-r.Context().Done():
			return true
		}
	})
	before := s.Requests()
	var all sync.WaitGroup
	for _, id := range ids {
		all.Go(func() {
			o, err := r.Open(t.Context(), id)
			if err == nil {
				o.Close()
				t.Errorf("%s opens", id)
				return
			}
			if k := turnstone.KindOf(err); k != turnstone.KindTimeout && k != turnstone.KindUnavailable ||
				!strings.Contains(err.Error(), "its key cannot be unwrapped: Vault https://") ||
				!strings.Contains(err.Error(), "does not answer") || turnstone.HintOf(err) == "" {
				t.Errorf("%s: %v", k, err)
			}
		})
	}
	for _, id := range []keyring.ID{cached.ID(), file.ID()} { // while the others wait
		o, err := r.Open(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		o.Close()
	}
	all.Wait()
	// Each of the callers that began before the circuit opened has asked once: not 1,000.
	if n := s.Requests() - before; n > 3*requests {
		t.Errorf("%d requests to a Vault that is away", n)
	}
	close(release)
	r = ring(t, dir, vault(t, s))
	for _, id := range ids[:20] {
		o, err := r.Open(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		o.Close()
	}
}

// TestComesBack: after the pause, one request finds out that Vault is there again.
func TestComesBack(t *testing.T) {
	s := serve(t)
	w := vault(t, s, func(o *transit.Options) { o.Pause = time.Millisecond })
	one := wrap(t, w, keyring.ID{1})
	s.Fail(refuses(503, "sealed"))
	for range 5 {
		if _, err := w.Unwrap(t.Context(), keyring.ID{1}, one); turnstone.KindOf(err) !=
			turnstone.KindUnavailable || !strings.Contains(err.Error(), "sealed") {
			t.Errorf("%v", err)
		}
	}
	s.Fail(nil)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if _, err := w.Unwrap(t.Context(), keyring.ID{1}, one); err == nil {
			break
		} else if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// TestImpatient: a caller that gives up is no fault of Vault, and stops nobody else.
func TestImpatient(t *testing.T) {
	s := serve(t)
	w := vault(t, s, func(o *transit.Options) { o.Pause = time.Hour })
	one := wrap(t, w, keyring.ID{1})
	s.Fail(func(_ http.ResponseWriter, r *http.Request, _ []byte) bool {
		<-r.Context().Done()
		return true
	})
	for range 10 {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond) //wait: it is meant to expire
		_, err := w.Unwrap(ctx, keyring.ID{1}, one)
		cancel()
		if turnstone.KindOf(err) != turnstone.KindCanceled || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
	}
	s.Fail(nil)
	unwraps(t, w, keyring.ID{1}, one)
}

// TestLyingVault: a Vault that encrypts or decrypts something else loses no key.
func TestLyingVault(t *testing.T) {
	s := serve(t)
	dir := &statedir.Dir{Root: t.TempDir()}
	r := ring(t, dir, vault(t, s))
	o, err := r.Create(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	o.Close()
	r.Forget(o.ID())
	lie := base64.StdEncoding.EncodeToString(make([]byte, seal.KeySize))
	s.Fail(func(w http.ResponseWriter, r *http.Request, _ []byte) bool {
		if !strings.Contains(r.URL.Path, "/decrypt/") {
			return false
		}
		_, _ = fmt.Fprintf(w, `{"data":{"plaintext":%q}}`, lie)
		return true
	})
	if _, err := r.Open(t.Context(), o.ID()); turnstone.KindOf(err) != turnstone.KindIntegrity {
		t.Errorf("another key: %v", err)
	}
	if _, err := r.Create(t.Context()); turnstone.KindOf(err) != turnstone.KindIntegrity {
		t.Errorf("a key that cannot be had again: %v", err)
	}
	if ids, err := r.Table().List(); err != nil || len(ids) != 1 {
		t.Errorf("%d domains, %v", len(ids), err)
	}
	s.Fail(nil)
	if _, err := r.Rotate(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.Fail(func(w http.ResponseWriter, r *http.Request, _ []byte) bool { // Vault's rewrap of nothing
		if !strings.Contains(r.URL.Path, "/rewrap/") {
			return false
		}
		_, _ = w.Write([]byte(`{"data":{"ciphertext":"vault:v2:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}}`))
		return true
	})
	failed := 0
	if err := r.Rewrap(t.Context(), func(_ keyring.ID, changed bool, err error) error {
		if changed || turnstone.KindOf(err) != turnstone.KindIntegrity {
			t.Errorf("%v, %v", changed, err)
		}
		failed++
		return nil
	}); err != nil || failed != 1 {
		t.Errorf("%d failed, %v", failed, err)
	}
	s.Fail(nil)
	if err := r.Check(t.Context(), o.ID()); err != nil {
		t.Errorf("the old wrapping is lost: %v", err)
	}
	if err := r.Rewrap(t.Context(), func(_ keyring.ID, changed bool, err error) error {
		if !changed || err != nil {
			t.Errorf("%v, %v", changed, err)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	s.MinDecrypt("turnstone", 2) // the old version is gone
	if err := r.Check(t.Context(), o.ID()); err != nil {
		t.Error(err)
	}
}
