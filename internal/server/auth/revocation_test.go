package auth

import (
	"bytes"
	"errors"
	"log/slog"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"turnstone.dev/turnstone"
)

func TestRevoked(t *testing.T) {
	s := newSetup(t)
	one, two := s.issue(t, s.usual()), s.issue(t, s.usual())
	check(t, s.publisher.Revoke(t.Context(),
		Revocation{Issuer: server, TokenID: one.ID, Until: one.Expires}))
	s.refused(t, one.Token.Reveal(), Revoked)
	s.accepted(t, two.Token.Reveal())
	// The same ID of another issuer is another token.
	check(t, s.publisher.Revoke(t.Context(),
		Revocation{Issuer: "https://other.example.org", TokenID: two.ID}))
	s.accepted(t, two.Token.Reveal())
	// A whole key.
	check(t, s.publisher.Revoke(t.Context(), Revocation{Issuer: server, Key: two.Key}))
	s.refused(t, two.Token.Reveal(), Revoked)
	check(t, s.publisher.Rotate(t.Context(), time.Time{}))
	s.refused(t, two.Token.Reveal(), Revoked)
	s.accepted(t, s.issue(t, s.usual()).Token.Reveal())
	for _, bad := range []Revocation{{}, {Issuer: server}, {TokenID: "x"},
		{Issuer: server, TokenID: "x", Key: "y"}} {
		if err := s.publisher.Revoke(t.Context(), bad); turnstone.KindOf(err) !=
			turnstone.KindInvalid {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// TestRevokedWithoutID revokes a token that has no jti, by the digest of what is signed.
func TestRevokedWithoutID(t *testing.T) {
	s := newSetup(t)
	p, err := parse(s.craft(t, s.header(), with(s.payload(), "jti", nil)))
	check(t, err)
	q, err := parse(p.raw[:len(p.raw)-4] + "AAAA") // another signature over the same claims
	check(t, err)
	one, err := p.id()
	check(t, err)
	two, err := q.id()
	check(t, err)
	if one != two || one == "" {
		t.Errorf("the IDs are %s and %s", one, two)
	}
}

// TestStale: without a bulletin, or with an old one, no token is accepted: one of them may be
// revoked.
func TestStale(t *testing.T) {
	s := newSetup(t)
	token := s.issue(t, s.usual()).Token.Reveal()
	v, err := NewVerifier(VerifierConfig{Name: server, Clock: s.clock, Stale: time.Minute})
	check(t, err)
	defer func() { check(t, v.Close()) }()
	stale := func() {
		t.Helper()
		_, err := v.Verify(t.Context(), token)
		if ReasonOf(err) != Stale || turnstone.KindOf(err) != turnstone.KindUnavailable ||
			Stale.Unauthenticated() {
			t.Errorf("the error is %v", err)
		}
	}
	stale()
	end, err := s.publisher.Follow(v)
	check(t, err)
	fresh := func() {
		t.Helper()
		_, err := v.Verify(t.Context(), token)
		check(t, err)
	}
	fresh()
	s.time.pass(time.Minute)
	fresh()
	s.time.pass(time.Second)
	stale()
	check(t, s.publisher.Beat(t.Context()))
	fresh()
	// The age counts while the machine sleeps, and when the wall clock is set back.
	s.time.move(2*time.Minute, 0)
	stale()
	check(t, s.publisher.Beat(t.Context()))
	fresh()
	s.time.move(-time.Hour, 2*time.Minute)
	stale()
	end()
	check(t, s.publisher.Beat(t.Context()))
	stale()
}

// TestOlderBulletin: a bulletin cannot take a revocation back.
func TestOlderBulletin(t *testing.T) {
	s := newSetup(t)
	before := s.publisher.last
	i := s.issue(t, s.usual())
	check(t, s.publisher.Revoke(t.Context(), Revocation{Issuer: server, TokenID: i.ID}))
	if err := s.verifier.Update(before); turnstone.KindOf(err) != turnstone.KindIntegrity {
		t.Errorf("an older bulletin: %v", err)
	}
	s.refused(t, i.Token.Reveal(), Revoked)
}

// TestRestored: a controller whose database was restored lacks revocations. Its bulletin is taken, and the log says so;
// those of tokens that have expired are not missed.
func TestRestored(t *testing.T) {
	s := newSetup(t)
	var log bytes.Buffer
	v, err := NewVerifier(VerifierConfig{Name: server, Clock: s.clock, Log: slog.New(slog.NewTextHandler(&log, nil))})
	check(t, err)
	defer func() { check(t, v.Close()) }()
	i := s.issue(t, s.usual())
	backup := s.publisher.last
	now := s.clock.Now()
	check(t, s.publisher.Revoke(t.Context(), Revocation{Issuer: server, TokenID: i.ID, Until: i.Expires}))
	check(t, s.publisher.Revoke(t.Context(), Revocation{Issuer: server, TokenID: "x", Until: now.Add(time.Minute)}))
	check(t, v.Update(s.publisher.last))
	if _, err := v.Verify(t.Context(), i.Token.Reveal()); ReasonOf(err) != Revoked || log.Len() > 0 {
		t.Fatalf("%v; the log is %s", err, &log)
	}
	s.time.pass(2 * time.Minute)
	backup.Number = s.publisher.last.Number + 1
	check(t, v.Update(backup))
	if _, err := v.Verify(t.Context(), i.Token.Reveal()); err != nil {
		t.Error(err)
	}
	if text := log.String(); !strings.Contains(text, "level=WARN") || !strings.Contains(text, "revocations=1 ") {
		t.Errorf("the log is %s", text)
	}
}

// TestConfirm: only the bulletin that a follower has can be confirmed, and a follower that missed
// one gets it with the next beat.
func TestConfirm(t *testing.T) {
	s := newSetup(t)
	v, err := NewVerifier(VerifierConfig{Name: server, Clock: s.clock})
	check(t, err)
	defer func() { check(t, v.Close()) }()
	if v.Confirm(s.publisher.last.Number) == nil {
		t.Error("a bulletin that did not come is confirmed")
	}
	check(t, v.Update(s.publisher.last))
	check(t, v.Confirm(s.publisher.last.Number))
	i := s.issue(t, s.usual())
	check(t, s.publisher.Revoke(t.Context(), Revocation{Issuer: server, TokenID: i.ID}))
	if v.Confirm(s.publisher.last.Number) == nil {
		t.Error("a missed bulletin is confirmed")
	}
	s.publisher.followers[99] = v // it lost its connection during the revocation
	check(t, s.publisher.Beat(t.Context()))
	if _, err := v.Verify(t.Context(), i.Token.Reveal()); ReasonOf(err) != Revoked {
		t.Errorf("after the beat: %v", err)
	}
}

// TestStill: what a token opened learns that the token was revoked, expired, or its key ended.
func TestStill(t *testing.T) {
	s := newSetup(t)
	check(t, s.verifier.Still(Operator("root")))
	want := func(p Principal, r Reason) {
		t.Helper()
		if err := s.verifier.Still(p); ReasonOf(err) != r {
			t.Errorf("the reason is %q, want %q: %v", ReasonOf(err), r, err)
		}
	}
	i := s.issue(t, s.usual())
	one := s.accepted(t, i.Token.Reveal())
	want(one, "")
	check(t, s.publisher.Revoke(t.Context(), Revocation{Issuer: server, TokenID: i.ID}))
	want(one, Revoked)
	two := s.accepted(t, s.issue(t, s.usual()).Token.Reveal())
	check(t, s.publisher.Rotate(t.Context(), s.time.wallTime().Add(10*time.Minute)))
	want(two, "")
	s.time.pass(11 * time.Minute)
	want(two, UnknownKey)
	three := s.accepted(t, s.issue(t, s.usual()).Token.Reveal())
	check(t, s.publisher.Revoke(t.Context(), Revocation{Issuer: server, Key: three.Key}))
	want(three, Revoked)
	check(t, s.publisher.Rotate(t.Context(), time.Time{}))
	four := s.accepted(t, s.issue(t, s.usual()).Token.Reveal())
	s.time.pass(61 * time.Minute)
	want(four, Stale)
	check(t, s.publisher.Beat(t.Context()))
	want(four, Expired)
}

// TestEndedRevocation: what ended long ago leaves the list, and a while later than it ended.
func TestEndedRevocation(t *testing.T) {
	s := newSetup(t)
	i := s.issue(t, s.usual())
	check(t, s.publisher.Revoke(t.Context(),
		Revocation{Issuer: server, TokenID: i.ID, Until: i.Expires}))
	for _, c := range []struct {
		after time.Duration
		want  int
	}{{time.Hour + time.Minute, 1}, {time.Hour, 0}} {
		s.time.pass(c.after)
		check(t, s.publisher.Revoke(t.Context()))
		if got := len(s.publisher.last.Revoked); got != c.want {
			t.Errorf("%d are revoked, want %d", got, c.want)
		}
	}
}

func TestBulletinRoundTrip(t *testing.T) {
	s := newSetup(t)
	check(t, s.publisher.Rotate(t.Context(), time.Time{}))
	check(t, s.publisher.Revoke(t.Context(), Revocation{Issuer: server, TokenID: "a",
		Until: s.time.wallTime()}, Revocation{Issuer: server, Key: "b"}))
	want := s.publisher.last
	b, err := want.Encode()
	check(t, err)
	got, err := DecodeBulletin(b)
	check(t, err)
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\n%+v", got, want)
	}
	for _, bad := range []string{"", "null x", `{"number":-1}`, `{"number":1,"number":2}`,
		`{"keys":[{"kid":"a","x":"AA"}]}`, `{"revoked":[{}]}`} {
		if _, err := DecodeBulletin([]byte(bad)); turnstone.KindOf(err) != turnstone.KindIntegrity {
			t.Errorf("%q: %v", bad, err)
		}
	}
	many := Bulletin{Revoked: make([]Revocation, MaxRevoked+1)}
	if _, err := many.Encode(); err == nil {
		t.Error("a bulletin is not bounded")
	}
}

type broken struct{ err error }

func (b broken) Update(Bulletin) error { return b.err }
func (b broken) Confirm(uint64) error  { return b.err }

// TestBrokenFollower: a follower that fails keeps no other from a revocation.
func TestBrokenFollower(t *testing.T) {
	s := newSetup(t)
	failed := errors.New("the gateway is gone")
	b := &broken{}
	for range 4 {
		_, err := s.publisher.Follow(b)
		check(t, err)
	}
	b.err = failed
	i := s.issue(t, s.usual())
	err := s.publisher.Revoke(t.Context(), Revocation{Issuer: server, TokenID: i.ID})
	if !errors.Is(err, failed) {
		t.Errorf("the error is %v", err)
	}
	s.refused(t, i.Token.Reveal(), Revoked)
	id := s.issuer.id
	if err := s.publisher.Rotate(t.Context(), time.Time{}); !errors.Is(err, failed) ||
		s.issuer.id == id {
		t.Errorf("the rotation: %v", err)
	}
	s.accepted(t, s.issue(t, s.usual()).Token.Reveal())
}

// TestUnpublishedRevocation: while a revocation that is stored cannot be published, nobody confirms
// the bulletin without it.
func TestUnpublishedRevocation(t *testing.T) {
	s := newSetup(t)
	i := s.issue(t, s.usual())
	s.register.fail = errors.New("the database is gone")
	r := Revocation{Issuer: server, TokenID: i.ID}
	if s.publisher.Revoke(t.Context(), r) == nil {
		t.Error("the revocation does not fail")
	}
	s.register.fail = nil
	check(t, s.publisher.Revoke(t.Context(), r))
	s.refused(t, i.Token.Reveal(), Revoked)
	two := s.issue(t, s.usual())
	s.register.failRevoke = errors.New("no answer")
	if s.publisher.Revoke(t.Context(), Revocation{Issuer: server, TokenID: two.ID}) == nil {
		t.Error("the revocation does not fail")
	}
	s.register.fail = s.register.failRevoke
	for range 2 {
		s.time.pass(50 * time.Minute)
		if s.publisher.Beat(t.Context()) == nil {
			t.Error("the old bulletin is confirmed")
		}
	}
	s.refused(t, s.issue(t, s.usual()).Token.Reveal(), Stale)
	s.register.fail = nil
	check(t, s.publisher.Beat(t.Context()))
	s.refused(t, two.Token.Reveal(), Expired)
	s.accepted(t, s.issue(t, s.usual()).Token.Reveal())
}

// TestTooManyRevoked: a full list takes nothing more, and says so before it stores anything.
func TestTooManyRevoked(t *testing.T) {
	s := newSetup(t)
	for n := range MaxRevoked {
		s.register.list = append(s.register.list, Revocation{Issuer: server, Key: strconv.Itoa(n)})
	}
	i := s.issue(t, s.usual())
	err := s.publisher.Revoke(t.Context(), Revocation{Issuer: server, TokenID: i.ID})
	if turnstone.KindOf(err) != turnstone.KindExhausted || len(s.register.list) != MaxRevoked {
		t.Errorf("%d are revoked: %v", len(s.register.list), err)
	}
	check(t, s.publisher.Beat(t.Context()))
}

// TestAtOnce verifies, rotates and revokes at the same time. After each revocation its token is
// refused.
func TestAtOnce(t *testing.T) {
	s := newSetup(t)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 20 {
				i, err := s.issuer.Issue(t.Context(), s.usual())
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := s.verifier.Verify(t.Context(), i.Token.Reveal()); err != nil {
					t.Error(err)
				}
				err = s.publisher.Revoke(t.Context(), Revocation{Issuer: server, TokenID: i.ID})
				if err != nil {
					t.Error(err)
				}
				_, err = s.verifier.Verify(t.Context(), i.Token.Reveal())
				if ReasonOf(err) != Revoked {
					t.Errorf("after its revocation: %v", err)
				}
			}
		})
	}
	wg.Go(func() {
		for range 10 {
			if err := s.publisher.Rotate(t.Context(), time.Time{}); err != nil {
				t.Error(err)
			}
		}
	})
	wg.Wait()
}
