package transit

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/keyring"
)

// A request is the body of a request. encoding/json writes bytes as base64, as Vault wants them.
type request struct {
	Plaintext  keyring.Secret `json:"-"`
	Ciphertext string         `json:"ciphertext,omitempty"`
	Context    []byte         `json:"context,omitempty"`
}

// encode returns the body.
func (r *request) encode() ([]byte, error) {
	type plain request
	return json.Marshal(struct {
		Plaintext []byte `json:"plaintext,omitempty"`
		*plain
	}{r.Plaintext, (*plain)(r)})
}

// An answer is what Vault answers under "data".
type answer struct {
	Plaintext  []byte `json:"plaintext"`
	Ciphertext string `json:"ciphertext"`
}

// maxAnswer bounds an answer in bytes.
const maxAnswer = 64 << 10

// path returns the path of an operation.
func (w *Wrapper) path(op string) string {
	if op == "rotate" {
		return "/v1/" + w.o.Mount + "/keys/" + w.o.Key + "/rotate"
	}
	return "/v1/" + w.o.Mount + "/" + op + "/" + w.o.Key
}

// try performs an operation, and tries again for a while if Vault is away.
func (w *Wrapper) try(ctx context.Context, op string, r *request) (*answer, error) {
	waits := backoff.NewExponentialBackOff()
	waits.InitialInterval, waits.MaxInterval = 50*time.Millisecond, time.Second
	var last error
	a, err := backoff.Retry(ctx, func() (*answer, error) {
		a, err := w.once(ctx, op, r)
		if err == nil {
			return a, nil
		}
		last = err
		var away *awayError
		if !errors.As(err, &away) || op == "rotate" { // Vault may have rotated
			return nil, backoff.Permanent(err)
		}
		w.last.Store(away.err) // before the circuit opens
		if away.after > 0 {
			return nil, &backoff.RetryAfterError{Duration: away.after}
		}
		return nil, err
	}, backoff.WithBackOff(waits), backoff.WithMaxTries(tries), backoff.WithMaxElapsedTime(0))
	if err != nil && last != nil {
		return nil, last // also if the time was over while it waited
	}
	return a, err
}

// once performs one request.
func (w *Wrapper) once(ctx context.Context, op string, r *request) (*answer, error) {
	b, err := r.encode()
	if err != nil {
		return nil, turnstone.NewError("keyring.vault", turnstone.KindInternal, w.subject(), err)
	}
	body := &secretBody{b: b}
	defer func() { _ = body.Close() }()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.o.Address+w.path(op), body)
	if err != nil {
		return nil, turnstone.NewError("keyring.vault", turnstone.KindInternal, w.subject(), err)
	}
	token, err := w.o.Token()
	if err != nil {
		return nil, err
	}
	req.ContentLength = int64(len(b))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Vault-Request", "true")
	req.Header.Set("X-Vault-Token", token)
	if w.o.Namespace != "" {
		req.Header.Set("X-Vault-Namespace", w.o.Namespace)
	}
	res, err := w.client.Do(req)
	if err != nil {
		return nil, w.broken(ctx, err)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	defer clear(text)
	switch {
	case err != nil:
		return nil, w.broken(ctx, err)
	case len(text) > maxAnswer:
		return nil, w.garbage()
	case res.StatusCode == http.StatusNoContent && op == "rotate":
		return &answer{}, nil
	case res.StatusCode != http.StatusOK:
		return nil, w.refused(res, text)
	}
	var got struct {
		Data answer `json:"data"`
	}
	if err := json.Unmarshal(text, &got); err != nil {
		if ctx.Err() != nil {
			// A server that learns of the end of a request may still answer it, and without content.
			return nil, w.broken(ctx, err)
		}
		return nil, w.garbage()
	}
	return &got.Data, nil
}

// A secretBody is a request's body that is erased when it is closed. The transport may read it at
// that time.
type secretBody struct {
	mu sync.Mutex
	b  []byte
	at int
}

func (s *secretBody) Read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at >= len(s.b) {
		return 0, io.EOF
	}
	n := copy(p, s.b[s.at:])
	s.at += n
	return n, nil
}

func (s *secretBody) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.b)
	s.b = nil
	return nil
}

// authorities returns the TLS configuration with the authorities of a PEM file.
func authorities(path string) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if path == "" {
		return c, nil
	}
	b, err := os.ReadFile(path)
	if err == nil {
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(b) {
			err = errors.New("has no certificate as PEM")
		}
	}
	if err != nil {
		return nil, turnstone.NewError("keyring.vault", turnstone.KindInvalid, path, err).
			WithHint("name the PEM file of Vault's authority in vault.ca")
	}
	return c, nil
}

// maxToken bounds a token in bytes.
const maxToken = 4 << 10

// TokenFile returns a function that reads a token from a file at each request, because Vault's agent
// renews it there. The error is of kind Invalid if every user can read the file.
func TokenFile(path string) func() (string, error) {
	return func() (string, error) {
		fail := func(err error, hint string) (string, error) {
			return "", turnstone.NewError("keyring.vault", turnstone.KindInvalid, path, err).
				WithHint(hint)
		}
		f, err := os.Open(path)
		if err != nil {
			return fail(err, "write Vault's token to the file, or name another one in vault.token")
		}
		defer func() { _ = f.Close() }()
		info, err := f.Stat()
		switch {
		case err != nil:
			return fail(err, "")
		case !info.Mode().IsRegular():
			return fail(errors.New("is not a regular file"), "name the file with Vault's token")
		case info.Mode().Perm()&0o007 != 0:
			return fail(errors.New("can be read or written by all users (mode "+
				strconv.FormatUint(uint64(info.Mode().Perm()), 8)+")"),
				"chmod 600 "+path+", and revoke the token")
		}
		b, err := io.ReadAll(io.LimitReader(f, maxToken+1))
		if err != nil {
			return fail(err, "")
		}
		token := string(bytes.TrimSpace(b))
		if token == "" || len(b) > maxToken || strings.ContainsFunc(token, func(r rune) bool {
			return r <= ' ' || r > '~'
		}) {
			return fail(errors.New("does not hold a token, on one line"), "write Vault's token to the file")
		}
		return token, nil
	}
}
