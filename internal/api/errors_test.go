package api

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
)

var kinds = []turnstone.Kind{
	turnstone.KindInvalid, turnstone.KindNotFound, turnstone.KindUnavailable,
	turnstone.KindExhausted, turnstone.KindCanceled, turnstone.KindTimeout,
	turnstone.KindIntegrity, turnstone.KindDead, turnstone.KindDenied, turnstone.KindInternal,
}

// TestMeaningsAreComplete: kinds, values of the enumeration and codes are one to one, and every
// Connect code has a kind.
func TestMeaningsAreComplete(t *testing.T) {
	codes, wires := map[connect.Code]bool{}, map[v1.ErrorKind]bool{}
	for _, k := range kinds {
		m := ofKind(k)
		if m.kind != k {
			t.Errorf("%s has no row", k)
		}
		if codes[m.code] || wires[m.wire] {
			t.Errorf("%s shares its code or its value", k)
		}
		codes[m.code], wires[m.wire] = true, true
		if want := "ERROR_KIND_" + strings.ToUpper(string(k)); m.wire.String() != want {
			t.Errorf("%s is %s", k, m.wire)
		}
	}
	if len(meanings) != len(kinds) || len(v1.ErrorKind_name) != len(kinds)+1 {
		t.Errorf("%d rows and %d values for %d kinds", len(meanings), len(v1.ErrorKind_name),
			len(kinds))
	}
	for code := connect.CodeCanceled; code <= connect.CodeUnauthenticated; code++ {
		if _, other := kindsOfCodes[code]; other == codes[code] {
			t.Errorf("%s is in none of the tables, or in both", code)
		}
	}
}

func TestToConnect(t *testing.T) {
	typed := func(k turnstone.Kind) *turnstone.Error {
		return turnstone.Errorf("sandbox.pause", k, "sandbox x", "why")
	}
	for _, c := range []struct {
		name      string
		err       error
		code      connect.Code
		text      string
		retryable bool
		header    string
	}{
		{"invalid", typed(turnstone.KindInvalid), connect.CodeInvalidArgument,
			"sandbox x: why", false, ""},
		{"wrapped", fmt.Errorf("outer secret: %w", typed(turnstone.KindNotFound)),
			connect.CodeNotFound, "sandbox x: why", false, ""},
		{"dead", typed(turnstone.KindDead), connect.CodeAborted, "sandbox x: why", true, ""},
		{"disk full", typed(turnstone.KindExhausted), connect.CodeResourceExhausted,
			"sandbox x: why", false, ""},
		{"rate limit", &Status{RetryAfter: 1500 * time.Millisecond,
			Err: typed(turnstone.KindExhausted)}, connect.CodeResourceExhausted,
			"sandbox x: why", true, "2"},
		{"no token", &Status{Code: connect.CodeUnauthenticated,
			Err: typed(turnstone.KindInvalid)}, connect.CodeUnauthenticated,
			"sandbox x: why", false, ""},
		{"fault", typed(turnstone.KindInternal), connect.CodeInternal, "sandbox x: internal",
			false, ""},
		{"untyped", errors.New("/home/x/secret.md: no such file"), connect.CodeInternal,
			"internal", false, ""},
		{"of a library", connect.NewError(connect.CodeInternal, errors.New("secret.md")),
			connect.CodeInternal, "internal", false, ""},
		{"unimplemented", connect.NewError(connect.CodeUnimplemented, errors.New("no such")),
			connect.CodeUnimplemented, "no such", false, ""},
		{"canceled", fmt.Errorf("x: %w", context.Canceled), connect.CodeCanceled, "canceled",
			false, ""},
		{"late", context.DeadlineExceeded, connect.CodeDeadlineExceeded, "timeout", true, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := ToConnect(c.err)
			if e.Code() != c.code || e.Message() != c.text {
				t.Errorf("%s: %q", e.Code(), e.Message())
			}
			d := detail(e)
			if d == nil || d.Retryable != c.retryable || Retryable(FromConnect(e)) != c.retryable {
				t.Errorf("the detail is %v", d)
			}
			if got := e.Meta().Get("Retry-After"); got != c.header {
				t.Errorf("Retry-After is %q", got)
			}
			if strings.Contains(fmt.Sprint(e, d), "secret") {
				t.Errorf("%v, %v says too much", e, d)
			}
			if again := ToConnect(e); again != e {
				t.Errorf("a sent error became %v", again)
			}
		})
	}
	if ToConnect(nil) != nil || FromConnect(nil) != nil {
		t.Error("no error became one")
	}
}

func TestFromConnectWithoutDetail(t *testing.T) {
	e := connect.NewWireError(connect.CodeUnavailable, errors.New("bad \x1b[31mgateway\n"))
	e.Meta().Set("Retry-After", "7")
	got := FromConnect(fmt.Errorf("call: %w", e))
	if turnstone.KindOf(got) != turnstone.KindUnavailable || RetryAfter(got) != 7*time.Second ||
		got.Error() != "bad  [31mgateway " || !Retryable(got) {
		t.Errorf("%q, %v", got, RetryAfter(got))
	}
	own := connect.NewError(connect.CodeUnavailable, fmt.Errorf("dial: %w", errRefused))
	if got := FromConnect(own); !errors.Is(got, errRefused) {
		t.Errorf("%v has lost its cause", got)
	}
	if got := FromConnect(errRefused); got != errRefused {
		t.Errorf("another error became %v", got)
	}
	for header, want := range map[string]time.Duration{"": 0, "-1": 0, "x": 0,
		"99999999": maxRetryAfter, "Wed, 21 Oct 2026 07:28:00 GMT": 0} {
		e.Meta().Set("Retry-After", header)
		if got := RetryAfter(FromConnect(e)); got != want {
			t.Errorf("Retry-After: %s is %v", header, got)
		}
	}
}

var errRefused = errors.New("connection refused")

// TestFromConnectNewerServer: a kind that this program does not know is read by its code.
func TestFromConnectNewerServer(t *testing.T) {
	e := connect.NewError(connect.CodeNotFound, errors.New("x"))
	d, err := connect.NewErrorDetail(&v1.Error{Kind: 99, Subject: "x"})
	if err != nil {
		t.Fatal(err)
	}
	e.AddDetail(d)
	if got := FromConnect(e); turnstone.KindOf(got) != turnstone.KindNotFound {
		t.Errorf("%v is %s", got, turnstone.KindOf(got))
	}
}

// TestErrorsRoundTrip: what arrives is what was sent, except for causes of internal errors, and
// texts are bounded and printable whatever they were.
func TestErrorsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.String(), rapid.Just(strings.Repeat("ä", 2000)),
			rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }))
		e := turnstone.NewError(turnstone.Op(text.Draw(t, "op")),
			rapid.SampledFrom(append(kinds, "", "new")).Draw(t, "kind"), text.Draw(t, "subject"),
			nil).WithHint(text.Draw(t, "hint"))
		if cause := text.Draw(t, "cause"); cause != "" {
			e.Err = errors.New(cause)
		}
		s := &Status{Err: e,
			RetryAfter: time.Duration(rapid.Int64().Draw(t, "wait")),
			Code:       connect.Code(rapid.Uint32Range(0, 16).Draw(t, "code"))}
		for range rapid.IntRange(0, 40).Draw(t, "violations") {
			s.Violations = append(s.Violations, Violation{Field: text.Draw(t, "field"),
				Rule: text.Draw(t, "rule"), Message: text.Draw(t, "message")})
		}
		sent := ToConnect(s)
		got := FromConnect(sent)
		if CodeOf(got) != CodeOf(s) || turnstone.KindOf(got) != ofKind(e.Kind).kind ||
			Retryable(got) != Retryable(s) || RetryAfter(got) != RetryAfter(s) {
			t.Fatalf("%#v became %#v", s, got)
		}
		var back *turnstone.Error
		if !errors.As(got, &back) || string(back.Op) != Clean(string(e.Op), maxOp) ||
			back.Subject != Clean(e.Subject, maxSubject) || back.Hint != Clean(e.Hint, maxHint) {
			t.Fatalf("%#v became %#v", e, back)
		}
		if back.Err != nil && (ofKind(e.Kind).kind == turnstone.KindInternal ||
			back.Err.Error() != Clean(e.Err.Error(), maxCause)) {
			t.Fatalf("%v became %v", e.Err, back.Err)
		}
		first, second := detail(sent), detail(ToConnect(got))
		if !proto.Equal(first, second) {
			t.Fatalf("%v became %v", first, second)
		}
		if n := proto.Size(first); n > 20<<10 {
			t.Fatalf("the detail has %d bytes", n)
		}
	})
}

func TestClean(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		most := rapid.IntRange(8, 64).Draw(t, "most")
		s := Clean(rapid.String().Draw(t, "s"), most)
		if len(s) > most || Clean(s, most) != s || strings.ContainsAny(s, "\n\r\t\x1b\u202e") {
			t.Fatalf("%q", s)
		}
	})
}

// TestKindsAreAllKinds keeps the list above equal to that of the root package.
func TestKindsAreAllKinds(t *testing.T) {
	if !slices.IsSortedFunc(meanings, func(a, b meaning) int { return int(a.wire - b.wire) }) {
		t.Error("meanings are not in the order of the enumeration")
	}
}
