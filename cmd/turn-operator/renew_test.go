package main

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/remote/hosts"
)

// TestRenew: one successor is made for a token, is stored until that succeeds, and then used; a token that a
// person has put there meanwhile stays.
func TestRenew(t *testing.T) {
	var out bytes.Buffer
	path := filepath.Join(t.TempDir(), "token")
	put := inFile(path)
	if err := put("one"); err != nil {
		t.Fatal(err)
	}
	due, made, fails := false, 0, error(nil)
	var stored []string
	r := &renewer{log: slog.New(slog.NewTextHandler(&out, nil)), take: put,
		current: func() (string, error) { return hosts.ReadToken(path) },
		successor: func(context.Context) (string, string, error) {
			is, err := hosts.ReadToken(path)
			if !due || err != nil {
				return "", "", err
			}
			made++
			return is, is + "'", nil
		},
		store: func(_ context.Context, token string) error {
			if fails == nil {
				stored = append(stored, token)
			}
			return fails
		}}
	look := func(want string, madeSoFar int) {
		t.Helper()
		r.look(t.Context())
		if is, err := hosts.ReadToken(path); err != nil || is != want || made != madeSoFar {
			t.Errorf("the token is %q, %v, and %d were made", is, err, made)
		}
	}
	look("one", 0)
	due, fails = true, turnstone.Errorf("x", turnstone.KindUnavailable, "the secret", "is away").WithHint("give the right")
	look("one", 1)
	look("one", 1)
	fails = nil
	look("one'", 1)
	if len(stored) != 1 || stored[0] != "one'" {
		t.Errorf("stored is %q", stored)
	}
	fails = errors.New("away again")
	look("one'", 2)
	if err := put("person"); err != nil {
		t.Fatal(err)
	}
	due, fails = false, nil
	look("person", 2)
	if len(stored) != 1 {
		t.Errorf("stored over a person's token: %q", stored)
	}
	text := out.String()
	if strings.Count(text, "is away") != 1 || !strings.Contains(text, "give the right") || strings.Contains(text, "one'") {
		t.Error(text)
	}
}

// TestRenewFlag: what cannot work is refused.
func TestRenewFlag(t *testing.T) {
	for _, f := range []flags{{Renew: "secret"}, {Renew: "a/b/c"}, {Renew: "/b"}, {Renew: "a/"}, {Renew: "file", Secrets: "s"}} {
		if r, err := f.newRenewer(nil, nil, nil); turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Errorf("%+v: %v, %v", f, r, err)
		}
	}
	for _, f := range []flags{{Renew: "file"}, {Renew: "a/b", Secrets: "s"}, {Renew: "a/b"}} {
		if r, err := f.newRenewer(nil, nil, nil); r == nil || err != nil {
			t.Errorf("%+v: %v, %v", f, r, err)
		}
	}
	if r, err := (&flags{}).newRenewer(nil, nil, nil); r != nil || err != nil {
		t.Errorf("%v, %v", r, err)
	}
}
