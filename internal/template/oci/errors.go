package oci

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"
	"unicode"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"turnstone.dev/turnstone"
)

// An integrityError reports data that does not match its digest or its length.
type integrityError struct{ why string }

func (e *integrityError) Error() string { return e.why }

func mismatch(format string,
	args ...any) error {
	return &integrityError{fmt.Sprintf(format, args...)}
}

// A contentError reports an intact image that cannot be used.
type contentError struct{ why, hint string }

func (e *contentError) Error() string { return e.why }

func unusable(hint, format string, args ...any) error {
	return &contentError{fmt.Sprintf(format, args...), hint}
}

// retry calls f until it succeeds, fails permanently, or has failed too often in a row. A call that
// reports progress resets the count of failures.
func (c *Client) retry(ctx context.Context,
	f func(ctx context.Context) (progress bool, err error)) error {
	failures := 0
	for attempt := 0; ; attempt++ {
		progress, err := f(ctx)
		if err == nil {
			return nil
		}
		if progress {
			failures = 0
		}
		if failures++; ctx.Err() != nil || !passing(err) || failures > c.opts.Retries ||
			attempt > 1000 {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(c.opts.Pause << min(failures-1, 6)):
		}
	}
}

// passing reports whether a failure may be temporary.
func passing(err error) bool {
	var status *transport.Error
	var refused *refusal
	var wrong *integrityError
	var content *contentError
	var typed *turnstone.Error
	switch {
	case errors.As(err, &refused), errors.As(err, &wrong), errors.As(err, &content),
		errors.As(err, &typed), errors.Is(err, errRedirects):
		return false
	case errors.As(err, &status):
		return status.StatusCode >= 500 || status.StatusCode == http.StatusTooManyRequests ||
			status.StatusCode == http.StatusRequestTimeout
	case errors.Is(err, errStalled), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF),
		errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return true
	case errors.Is(err, syscall.ECONNREFUSED):
		return false // no server listens
	}
	var dns *net.DNSError
	if errors.As(err, &dns) {
		return dns.IsTemporary && !dns.IsNotFound
	}
	var network net.Error
	return errors.As(err, &network) && network.Timeout()
}

// failed turns an error of a registry request into an error with a hint.
func (r Reference) failed(err error) error {
	var typed *turnstone.Error
	if err == nil || errors.As(err, &typed) {
		return err
	}
	err = r.explained(err)
	if near := r.Near(); near != "" && errors.As(err, &typed) &&
		typed.Kind != turnstone.KindCanceled && typed.Kind != turnstone.KindExhausted {
		typed.Hint = strings.TrimPrefix(typed.Hint+"; ", "; ") + "the built-in template " + near +
			" comes near to it"
	}
	return err
}

// explained is failed without a hint at a built-in template.
func (r Reference) explained(err error) error {
	var typed *turnstone.Error
	if err == nil || errors.As(err, &typed) {
		return err
	}
	out := turnstone.NewError("oci.pull", turnstone.KindUnavailable, "image "+r.String(),
		&foreign{clean(err)})
	var status *transport.Error
	var refused *refusal
	var wrong *integrityError
	var content *contentError
	var network net.Error
	var dial *net.OpError
	switch {
	case errors.Is(err, context.Canceled):
		out.Kind = turnstone.KindCanceled
	case errors.As(err, &wrong):
		out.Kind, out.Hint = turnstone.KindIntegrity,
			"the registry, or a server in between, sends wrong data; none of it was kept"
	case errors.As(err, &content):
		out.Kind, out.Hint = turnstone.KindInvalid, content.hint
	case errors.As(err, &refused):
		out.Kind, out.Hint = turnstone.KindInvalid,
			"nothing was asked there; pull from a registry that serves the image itself, over TLS"
		if refused.hint != "" {
			out.Hint = refused.hint
		}
	case turnstone.IsFull(err):
		out.Kind, out.Hint = turnstone.KindExhausted, "free some disk space, or move TURN_HOME"
	case errors.As(err, &status):
		out.Kind, out.Hint, out.Err = r.answered(status)
	case errors.Is(err, errStalled):
		out.Kind, out.Hint = turnstone.KindTimeout,
			"try again; the download continues where it ended"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF),
		errors.Is(err, syscall.ECONNRESET):
		out.Err = fmt.Errorf("registry %s: connection lost: %w", r.Registry(), out.Err)
		out.Hint = "try again; the download continues where it ended"
	case errors.As(err, &network) && network.Timeout() &&
		!(errors.As(err, &dial) && dial.Op == "dial"):
		out.Kind, out.Hint = turnstone.KindTimeout,
			"try again; the download continues where it ended"
	default:
		out.Err = fmt.Errorf("registry %s does not answer: %w", r.Registry(), out.Err)
		out.Hint = "check the name, the network and the proxy's settings"
	}
	return out
}

// answered explains a registry's error response.
func (r Reference) answered(e *transport.Error) (kind turnstone.Kind, hint string, err error) {
	says := fmt.Errorf("registry %s answers %d %s", r.Registry(), e.StatusCode,
		http.StatusText(e.StatusCode))
	if len(e.Errors) > 0 && e.Errors[0].Message != "" {
		says = fmt.Errorf("%w: %.300q", says, string(e.Errors[0].Code)+": "+e.Errors[0].Message)
	}
	switch code := e.StatusCode; {
	case code == http.StatusUnauthorized || code == http.StatusForbidden:
		// Registries send this status for missing repositories too.
		return turnstone.KindNotFound, "check the name; if the image is private: docker login " +
			r.Registry(), says
	case code == http.StatusNotFound:
		return turnstone.KindNotFound,
			"check the name and the tag; there may be no such image", says
	case code == http.StatusTooManyRequests:
		return turnstone.KindExhausted, "wait, or log in for more requests: docker login " +
			r.Registry(), says
	case code >= 500:
		return turnstone.KindUnavailable, "try again later", says
	}
	return turnstone.KindUnavailable, "this registry does not serve images as others do", says
}

// Near returns the built-in template that resembles the image; "" if there is none.
func (r Reference) Near() string {
	path := r.repo.RepositoryStr()
	last := path[strings.LastIndexByte(path, '/')+1:]
	switch {
	case strings.Contains(path, "claude"):
		return "claude-code"
	case strings.Contains(last, "python"), last == "pypy", strings.Contains(last, "jupyter"):
		return "python"
	case last == "node", strings.Contains(last, "nodejs"), last == "bun", last == "deno":
		return "nodejs"
	case strings.HasPrefix(last, "debian"), strings.HasPrefix(last, "ubuntu"), last == "bash",
		last == "buildpack-deps":
		return "base"
	}
	return ""
}

// maxForeign bounds the text of an error that may have a registry's words in it, in bytes.
const maxForeign = 2000

// A foreign error has a bounded text without control characters, because a registry's answers are
// quoted in it: challenges, tokens' answers and manifests have up to megabytes.
type foreign struct{ err error }

// Unwrap returns the error itself.
func (e *foreign) Unwrap() error { return e.err }

func (e *foreign) Error() string {
	text := e.err.Error()
	if len(text) > maxForeign {
		text = text[:maxForeign] + "…"
	}
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
}

// clean removes private parts of an address from err: the query, in which storage has its
// signatures, and a user.
func clean(err error) error {
	var at *url.Error
	if !errors.As(err, &at) {
		return err
	}
	u, parseErr := url.Parse(at.URL)
	if parseErr != nil {
		return at.Err
	}
	u.RawQuery, u.Fragment, u.User = "", "", nil
	return fmt.Errorf("%s %s: %w", at.Op, u, clean(at.Err))
}
