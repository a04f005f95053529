package owners

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/channel/attest"
	"turnstone.dev/turnstone/internal/proof/key"
	"turnstone.dev/turnstone/internal/store/session"
)

func signer(t testing.TB, seed byte) *key.Signer {
	t.Helper()
	s, err := ssh.NewSignerFromKey(ed25519.NewKeyFromSeed(bytes.Repeat([]byte{seed}, 32)))
	if err != nil {
		t.Fatal(err)
	}
	k, err := key.NewSigner(s)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func store(t testing.TB) *Store {
	t.Helper()
	s, err := Open(filepath.Join(t.TempDir(), "owners"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func caller() Caller { return Caller{Key: channel.NewKeyPair().Public} }

func want(t testing.TB, err error, kind turnstone.Kind) {
	t.Helper()
	if kind == "" && err != nil || kind != "" && (err == nil || turnstone.KindOf(err) != kind) {
		t.Helper()
		t.Fatalf("the error is %v (%s), not %q", err, turnstone.KindOf(err), kind)
	}
}

// TestOwner lets only the key that made a session use it, and the operator.
func TestOwner(t *testing.T) {
	s, id := store(t), turnstone.NewSessionID()
	mine, other, operator := caller(), caller(), Caller{Operator: true}
	for _, c := range []Caller{mine, other} { // a session of the local command
		want(t, s.May(id, c, Read), turnstone.KindNotFound)
	}
	want(t, s.May(id, operator, Own), "")
	want(t, s.Claim(t.Context(), id, mine), "")
	want(t, s.Claim(t.Context(), id, mine), "")
	want(t, s.Claim(t.Context(), id, other), turnstone.KindInvalid)
	want(t, s.May(id, mine, Own), "")
	want(t, s.May(id, operator, Own), "")
	want(t, s.May(id, other, Read), turnstone.KindNotFound)
	// the same answer as for a session that does not exist
	gone := turnstone.NewSessionID()
	a, b := s.May(id, other, Read).Error(), s.May(gone, other, Read).Error()
	if strings.ReplaceAll(a, string(id), "S") != strings.ReplaceAll(b, string(gone), "S") {
		t.Errorf("%q and %q", a, b)
	}
	want(t, s.Forget(id), "")
	want(t, s.Forget(id), "")
	want(t, s.May(id, mine, Read), turnstone.KindNotFound)
	info, err := os.Stat(s.dir)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v %v", info.Mode(), err)
	}
}

// TestShare admits a key on behalf of the owner, and withdraws it.
func TestShare(t *testing.T) {
	s, id := store(t), turnstone.NewSessionID()
	mine, other := caller(), caller()
	want(t, s.Claim(t.Context(), id, mine), "")
	soon := time.Now().Add(time.Hour)
	read, write := []attest.Scope{attest.ScopeRead}, []attest.Scope{attest.ScopeWrite}
	want(t, s.Allow(t.Context(), id, other, other.Key, write, soon), turnstone.KindNotFound)
	want(t, s.Allow(t.Context(), id, mine, other.Key, read, soon), "")
	want(t, s.May(id, other, Read), "")
	want(t, s.May(id, other, Write), turnstone.KindInvalid)
	want(t, s.Allow(t.Context(), id, other, other.Key, write, soon), turnstone.KindInvalid)
	if _, err := s.Show(id, other); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Error(err)
	}
	want(t, s.Allow(t.Context(), id, mine, other.Key, write, soon), "")
	want(t, s.May(id, other, Write), "")
	want(t, s.May(id, other, Own), turnstone.KindInvalid)
	o, err := s.Show(id, mine)
	if err != nil || len(o.Clients) != 1 || len(o.Admitted) != 1 || o.Admitted[0].Client != other.Key {
		t.Fatalf("%+v %v", o, err)
	}
	s.now = func() time.Time { return soon }
	want(t, s.May(id, other, Read), turnstone.KindNotFound)
	s.now = time.Now
	want(t, s.Allow(t.Context(), id, mine, other.Key, nil, soon), "")
	want(t, s.May(id, other, Read), turnstone.KindNotFound)
	// an operator's session, which has no entry yet
	local := turnstone.NewSessionID()
	want(t, s.Allow(t.Context(), local, Caller{Operator: true}, other.Key, read, soon), "")
	want(t, s.May(local, other, Read), "")
	want(t, s.Claim(t.Context(), local, other), turnstone.KindInvalid)
	for range maxAdmitted {
		err = s.Allow(t.Context(), id, mine, caller().Key, read, soon)
	}
	want(t, err, "")
	want(t, s.Allow(t.Context(), id, mine, caller().Key, read, soon), turnstone.KindExhausted)
}

// TestGrant admits keys by grants: only the owner's, only newer ones, only for their session.
func TestGrant(t *testing.T) {
	s, id := store(t), turnstone.NewSessionID()
	owner := signer(t, 1)
	mine, other := caller(), caller()
	mine.Owner = owner.String()
	want(t, s.Claim(t.Context(), id, mine), "")
	grant := func(change func(g *attest.Grant), by *key.Signer) error {
		g := &attest.Grant{Session: id, Client: other.Key, Number: 1,
			Scopes: []attest.Scope{attest.ScopeRead}, Time: time.Now(),
			Expires: time.Now().Add(time.Hour)}
		change(g)
		envelope, err := attest.SignGrant(t.Context(), g, by)
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.Admit(t.Context(), envelope)
		return err
	}
	for name, c := range map[string]struct {
		change func(*attest.Grant)
		by     *key.Signer
		fault  channel.Fault
	}{
		"of another key":     {func(*attest.Grant) {}, signer(t, 2), channel.FaultForged},
		"of another session": {func(g *attest.Grant) { g.Session = turnstone.NewSessionID() }, owner, channel.FaultForged},
		"expired":            {func(g *attest.Grant) { g.Time, g.Expires = g.Time.Add(-2*time.Hour), g.Time.Add(-time.Hour) }, owner, channel.FaultExpired},
		"of the future":      {func(g *attest.Grant) { g.Time, g.Expires = g.Time.Add(time.Hour), g.Expires.Add(time.Hour) }, owner, channel.FaultExpired},
	} {
		if err := grant(c.change, c.by); channel.FaultOf(err) != c.fault {
			t.Errorf("%s: %v", name, err)
		}
		want(t, s.May(id, other, Read), turnstone.KindNotFound)
	}
	want(t, grant(func(g *attest.Grant) { g.Number = 5 }, owner), "")
	want(t, s.May(id, other, Read), "")
	want(t, grant(func(g *attest.Grant) { g.Number, g.Scopes = 6, nil }, owner), "")
	want(t, s.May(id, other, Read), turnstone.KindNotFound)
	for _, n := range []uint64{5, 6} { // the old grant does not come back
		if err := grant(func(g *attest.Grant) { g.Number = n }, owner); channel.FaultOf(err) != channel.FaultReplayed {
			t.Errorf("number %d again: %v", n, err)
		}
	}
	// a session whose maker named no owner admits nobody by a grant
	bare := turnstone.NewSessionID()
	want(t, s.Claim(t.Context(), bare, caller()), "")
	if err := grant(func(g *attest.Grant) { g.Session = bare }, owner); channel.FaultOf(err) != channel.FaultForged {
		t.Error(err)
	}
}

// TestDamaged denies what an entry does not say clearly.
func TestDamaged(t *testing.T) {
	s, id := store(t), turnstone.NewSessionID()
	mine := caller()
	want(t, s.Claim(t.Context(), id, mine), "")
	good, err := os.ReadFile(s.path(id))
	if err != nil {
		t.Fatal(err)
	}
	another := bytes.ReplaceAll(good, []byte(id), []byte(turnstone.NewSessionID()))
	for name, text := range map[string][]byte{"empty": nil, "cut": good[:len(good)-1],
		"more": append(bytes.Clone(good), '{'), "of another session": another,
		"unknown field": bytes.Replace(good, []byte(`{"v`), []byte(`{"x":1,"v`), 1),
		"large":         append(bytes.Clone(good), bytes.Repeat([]byte(" "), maxEntry)...),
		"no version":    bytes.Replace(good, []byte(`"version":1`), []byte(`"version":2`), 1)} {
		if err := os.WriteFile(s.path(id), text, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := s.May(id, mine, Read); turnstone.KindOf(err) != turnstone.KindIntegrity {
			t.Errorf("%s: %v", name, err)
		}
		if err := s.Claim(t.Context(), id, mine); turnstone.KindOf(err) != turnstone.KindIntegrity {
			t.Errorf("%s: claimed: %v", name, err)
		}
	}
	want(t, os.Remove(s.path(id)), "")
	want(t, os.Mkdir(s.path(id), 0o700), "") // cannot be read
	if err := s.May(id, mine, Read); err == nil || turnstone.KindOf(err) == turnstone.KindNotFound {
		t.Error(err)
	}
	for _, bad := range []turnstone.SessionID{"", ".", "../x", "s_/../../../../etc/pass", "s_"} {
		want(t, s.May(bad, mine, Read), turnstone.KindNotFound)
		want(t, s.Claim(t.Context(), bad, mine), turnstone.KindNotFound)
		want(t, s.Forget(bad), "")
	}
}

// TestAtOnce claims a session from many sides: one wins, and no grant is lost.
func TestAtOnce(t *testing.T) {
	s, id := store(t), turnstone.NewSessionID()
	var wg sync.WaitGroup
	var mu sync.Mutex
	var won []Caller
	for range 8 {
		wg.Go(func() {
			c := caller()
			if s.Claim(context.Background(), id, c) == nil {
				mu.Lock()
				defer mu.Unlock()
				won = append(won, c)
			}
		})
	}
	wg.Wait()
	if len(won) != 1 {
		t.Fatalf("%d owners", len(won))
	}
	for range 8 {
		wg.Go(func() {
			if err := s.Allow(context.Background(), id, won[0], caller().Key,
				[]attest.Scope{attest.ScopeRead}, time.Now().Add(time.Hour)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if o, err := s.Show(id, won[0]); err != nil || len(o.Admitted) != 8 {
		t.Fatalf("%+v %v", o, err)
	}
	if info, err := os.Stat(s.path(id)); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
}

func TestSweep(t *testing.T) {
	s := store(t)
	mine := caller()
	old, kept := turnstone.NewSessionID(), turnstone.NewSessionID()
	for _, id := range []turnstone.SessionID{old, kept} {
		want(t, s.Claim(t.Context(), id, mine), "")
	}
	exists := func(id turnstone.SessionID) error {
		if id == old {
			return turnstone.NewError("", turnstone.KindNotFound, "", nil)
		}
		return nil
	}
	want(t, s.Sweep(exists), "")
	want(t, s.May(old, mine, Own), "") // it may be about to be made
	s.now = func() time.Time { return time.Now().Add(2 * time.Hour) }
	want(t, s.Sweep(exists), "")
	want(t, s.May(old, mine, Own), turnstone.KindNotFound)
	want(t, s.May(kept, mine, Own), "")
}

// TestLimit is the way of an operation: the database sees the caller's sessions only, by each kind
// of reference, and what the caller makes is the caller's before anybody can see it.
func TestLimit(t *testing.T) {
	s := store(t)
	db, err := session.Open(t.Context(), filepath.Join(t.TempDir(), "context.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	mine, other := caller(), caller()
	my := s.Limit(t.Context(), mine, Write)
	theirs := s.Limit(t.Context(), other, Read)
	operator := s.Limit(t.Context(), Caller{Operator: true}, Own)
	local, err := db.Ensure(t.Context(), "local")
	want(t, err, "")
	research, err := db.Ensure(my, "research")
	want(t, err, "")
	turn, err := db.Start(my, session.StartTurn{Session: research.ID, Kind: turnstone.TurnKindRun})
	want(t, err, "")
	_, _, err = db.Finish(my, session.Finish{Turn: turn.ID, Result: turnstone.ResultPassed,
		Record: turnstone.DigestBytes(nil), State: turnstone.DigestBytes(nil), MoveBranch: true})
	want(t, err, "")
	anonymous, err := db.Start(my, session.StartTurn{Kind: turnstone.TurnKindRun})
	want(t, err, "")
	want(t, s.May(anonymous.Session, mine, Own), "")
	refs := []string{"research", "research@1", "research@main", string(turn.ID), string(turn.ID)[:18],
		string(research.ID), string(research.ID)[:18] + "@1", string(research.ID) + "@turn-1"}
	for _, ref := range refs {
		for name, c := range map[string]struct {
			ctx  context.Context
			kind turnstone.Kind
		}{"mine": {my, ""}, "other": {theirs, turnstone.KindNotFound}, "operator": {operator, ""},
			"no limit": {t.Context(), ""}} {
			if _, err := db.Resolve(c.ctx, ref); (err == nil) != (c.kind == "") ||
				err != nil && turnstone.KindOf(err) != c.kind {
				t.Errorf("%s: %s: %v", name, ref, err)
			} else if err != nil && !strings.HasSuffix(ref, string(turn.ID)) &&
				strings.Contains(err.Error()+turnstone.HintOf(err), string(turn.ID)) {
				t.Errorf("%s: %s: the error tells the ID: %v", name, ref, err)
			}
		}
	}
	for name, err := range map[string]error{
		"Find":  second(db.Find(theirs, "research")),
		"Graph": second(db.Graph(theirs, research.ID)),
		"Turn":  second(db.Turn(theirs, turn.ID)),
		"in":    second(db.ResolveIn(theirs, research.ID, "1")),
	} {
		if turnstone.KindOf(err) != turnstone.KindNotFound {
			t.Errorf("%s: %v", name, err)
		}
		if strings.Contains(turnstone.HintOf(err), "did you mean") {
			t.Errorf("%s suggests a hidden session: %s", name, turnstone.HintOf(err))
		}
	}
	_, err = db.Ensure(theirs, "research")
	want(t, err, turnstone.KindInvalid)
	_, err = db.Start(theirs, session.StartTurn{Session: research.ID, Kind: turnstone.TurnKindRun})
	want(t, err, turnstone.KindNotFound)
	for name, c := range map[string]struct {
		ctx  context.Context
		want int
	}{"mine": {my, 2}, "other": {theirs, 0}, "operator": {operator, 3}} {
		if all, err := db.List(c.ctx); err != nil || len(all) != c.want {
			t.Errorf("%s: %d sessions: %v", name, len(all), err)
		}
	}
	_, err = db.Find(my, local.Name)
	want(t, err, turnstone.KindNotFound)
	// an import does not take over a session, and its session becomes the importer's
	g, err := db.Graph(my, research.ID)
	want(t, err, "")
	_, err = db.Has(theirs, g)
	want(t, err, turnstone.KindInvalid)
}

func second[T any](_ T, err error) error { return err }

// TestNoClaimNoSession makes no session whose owner cannot be written down.
func TestNoClaimNoSession(t *testing.T) {
	s := store(t)
	db, err := session.Open(t.Context(), filepath.Join(t.TempDir(), "context.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	want(t, os.RemoveAll(s.dir), "")
	if _, err := db.Ensure(s.Limit(t.Context(), caller(), Write), "research"); err == nil {
		t.Fatal("it was made")
	}
	_, err = db.Find(t.Context(), "research")
	want(t, err, turnstone.KindNotFound)
}

// FuzzEntry decodes files: what is accepted means one thing, and can be written again.
func FuzzEntry(f *testing.F) {
	s, id := store(f), turnstone.NewSessionID()
	c := caller()
	c.Owner = signer(f, 1).String()
	if err := s.Claim(f.Context(), id, c); err != nil {
		f.Fatal(err)
	}
	if err := s.Allow(f.Context(), id, c, caller().Key, []attest.Scope{attest.ScopeRead},
		time.Now().Add(time.Hour)); err != nil {
		f.Fatal(err)
	}
	text, err := os.ReadFile(s.path(id))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"version":1,"session":"s_000000000000000000","clients":[]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := decode(b)
		if err != nil {
			return
		}
		again, err := e.encode()
		if err != nil {
			t.Fatal(err)
		}
		e2, err := decode(again)
		if err != nil {
			t.Fatal(err)
		}
		a, _ := json.Marshal(e)
		b2, _ := json.Marshal(e2)
		if !bytes.Equal(a, b2) {
			t.Fatalf("%s became %s", a, b2)
		}
		for _, a := range e.Admitted {
			if _, ok := e.has(a.Client, a.Expires); ok && e.index(a.Client) >= 0 &&
				!contains(e.Clients, a.Client) {
				t.Fatal("a key is admitted after its end")
			}
		}
	})
}

func contains(all []channel.PublicKey, k channel.PublicKey) bool {
	for _, c := range all {
		if c == k {
			return true
		}
	}
	return false
}
