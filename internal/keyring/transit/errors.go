package transit

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/keyring"
)

// Errors never hold a text that Vault sent: what stands for Vault may send back the request, which
// has a key.

// An awayError is the error of a Vault that may answer later.
type awayError struct {
	err   *turnstone.Error
	after time.Duration // for which Vault asks to wait; 0: unknown
}

func (e *awayError) Error() string { return e.err.Error() }
func (e *awayError) Unwrap() error { return e.err }

func isAway(err error) bool {
	var away *awayError
	return errors.As(err, &away)
}

const (
	hintAway = "see whether Vault runs and is unsealed, and whether vault.address is right"
	hintPath = "compare vault.mount, vault.key and vault.namespace with Vault"
)

func (w *Wrapper) fault(kind turnstone.Kind, why, hint string) *turnstone.Error {
	return turnstone.Errorf("keyring.vault", kind, w.subject(), "%s", why).WithHint(hint)
}

func (w *Wrapper) away(kind turnstone.Kind, why, hint string) error {
	return &awayError{err: w.fault(kind, why, hint)}
}

// garbage is the error of an answer that is not Vault's.
func (w *Wrapper) garbage() error {
	return w.fault(turnstone.KindUnavailable, "answers something that is not an answer of the transit engine",
		hintAway)
}

func (w *Wrapper) damaged(one keyring.Wrapping) error {
	return turnstone.Errorf("keyring.vault", turnstone.KindIntegrity, one.Name,
		"what it should unwrap is damaged").
		WithHint("restore the file of the domain below domains/ from a backup")
}

// broken is the error of a connection.
func (w *Wrapper) broken(ctx context.Context, err error) error {
	var (
		timeout     interface{ Timeout() bool }
		certificate *tls.CertificateVerificationError
		record      tls.RecordHeaderError
		dns         *net.DNSError
		errno       syscall.Errno
	)
	switch {
	case ctx.Err() != nil && !errors.Is(context.Cause(ctx), errTimeout):
		return w.given(ctx.Err())
	case errors.As(err, &certificate):
		return w.away(turnstone.KindUnavailable, "has a certificate that is not trusted here",
			"name the PEM file of its authority in vault.ca, and see whether the certificate is for this address and in date")
	case errors.As(err, &record):
		return w.away(turnstone.KindUnavailable, "does not speak TLS", hintAway)
	case errors.As(err, &dns):
		return w.away(turnstone.KindUnavailable, "does not answer: its name is not found", hintAway)
	case ctx.Err() != nil, errors.As(err, &timeout) && timeout.Timeout():
		return w.away(turnstone.KindTimeout, "does not answer within "+w.o.Timeout.String(), hintAway)
	case errors.As(err, &errno):
		return w.away(turnstone.KindUnavailable, "does not answer: "+errno.Error(), hintAway)
	}
	return w.away(turnstone.KindUnavailable, "does not answer: the connection broke", hintAway)
}

// refused is the error of an answer with another status than 200.
func (w *Wrapper) refused(res *http.Response, text []byte) error {
	switch s := res.StatusCode; {
	case s == http.StatusForbidden, s == http.StatusUnauthorized:
		return w.fault(turnstone.KindDenied, "refuses the token",
			"renew the token in vault.token, and see whether its policy grants update on "+
				w.o.Mount+"/encrypt/"+w.o.Key+", decrypt and rewrap")
	case s == http.StatusNotFound:
		return w.fault(turnstone.KindNotFound, "has no transit engine at "+w.o.Mount+
			", or no key "+w.o.Key, hintPath)
	case s == http.StatusTooManyRequests:
		err := &awayError{err: w.fault(turnstone.KindExhausted, "limits the rate of requests",
			"raise its quota for this node")}
		if n, perr := strconv.Atoi(res.Header.Get("Retry-After")); perr == nil && n > 0 {
			err.after = min(time.Duration(n)*time.Second, w.o.Timeout)
		}
		return err
	case s == http.StatusServiceUnavailable:
		return w.away(turnstone.KindUnavailable, "is sealed or in maintenance", "unseal Vault")
	case s >= 300 && s < 400:
		return w.fault(turnstone.KindUnavailable, "redirects to another server",
			"set vault.address to the active Vault, or let standbys forward requests")
	case s == 472, s == 473: // of standbys that do not forward
		return w.away(turnstone.KindUnavailable, "is a standby that does not forward requests", hintAway)
	case s == http.StatusBadRequest:
		return w.invalid(text)
	case s >= 500:
		return w.away(turnstone.KindUnavailable, "answers with status "+strconv.Itoa(s), hintAway)
	}
	return w.fault(turnstone.KindUnavailable, "answers with status "+strconv.Itoa(res.StatusCode),
		hintPath)
}

// errWrongKey is the cause of an error if the wrapping key does not fit to what it should unwrap.
var errWrongKey = errors.New("cannot decrypt it")

// invalid is the error of a request that Vault rejects. The texts are those of Vault's source,
// builtin/logical/transit and sdk/helper/keysutil.
func (w *Wrapper) invalid(text []byte) error {
	var got struct {
		Errors []string `json:"errors"`
	}
	if json.Unmarshal(text, &got) != nil || len(got.Errors) == 0 {
		return w.garbage()
	}
	says := func(words string) bool { return bytes.Contains(text, []byte(words)) }
	switch {
	case says("encryption key not found"):
		return w.fault(turnstone.KindNotFound, "has no key "+w.o.Key,
			"restore the key in Vault: without it, nobody can read what it wrapped, except with the recovery identity")
	case says("version is disallowed by policy (too old)"):
		return w.fault(turnstone.KindDenied, "does not decrypt with this old version of the key",
			"lower min_decryption_version of the key, run turn domain rewrap, and raise it again")
	case says("version is too new"), says("no such key version"):
		return turnstone.NewError("keyring.vault", turnstone.KindNotFound, w.subject(),
			errors.New("does not have this version of the key")).
			WithHint("restore the newest backup of the key in Vault")
	case says("message authentication failed"), says("invalid ciphertext"):
		return turnstone.NewError("keyring.vault", turnstone.KindIntegrity, w.subject(), errWrongKey)
	case says("not supported for key type"), says("unsupported"):
		return w.fault(turnstone.KindInvalid, "has a key "+w.o.Key+" of a type that does not encrypt",
			"make a key of the type aes256-gcm96 or chacha20-poly1305")
	}
	return w.fault(turnstone.KindInvalid, "rejects the request", hintPath)
}

// explain names the key of a wrapping that Vault cannot decrypt.
func (w *Wrapper) explain(one keyring.Wrapping, err error) error {
	if !errors.Is(err, errWrongKey) {
		return err
	}
	return turnstone.Errorf("keyring.vault", turnstone.KindIntegrity, w.subject(),
		"%w with %s: it was wrapped with %.200s, or is damaged", errWrongKey, w.name, one.Name).
		WithHint("name the key that wrapped it in vault.key and vault.mount, or restore the file of the domain below domains/")
}
