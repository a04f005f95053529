package authority

import (
	"bytes"
	"crypto/ed25519"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/channel/attest"
	"turnstone.dev/turnstone/internal/proof/key"
	"turnstone.dev/turnstone/internal/statedir"
)

func node(t testing.TB, seed byte) key.Public {
	t.Helper()
	s, err := ssh.NewSignerFromKey(ed25519.NewKeyFromSeed(bytes.Repeat([]byte{seed}, 32)))
	if err != nil {
		t.Fatal(err)
	}
	k, err := key.NewPublic(s.PublicKey())
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func made(t testing.TB) (Authority, *Record) {
	t.Helper()
	a := Authority{key.Ring{Dir: &statedir.Dir{Root: t.TempDir()}}}
	r, err := a.Make(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return a, r
}

func sign(t testing.TB, a Authority, seed byte, name string) *Signed {
	t.Helper()
	s, err := a.Sign(t.Context(), Request{Key: node(t, seed), Name: name, For: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// believe checks a certificate as a client does that knows r.
func believe(t testing.TB, text []byte, r attest.Root) (attest.Root, error) {
	t.Helper()
	c, err := attest.OpenChain(t.Context(), text)
	if err != nil {
		t.Fatal(err)
	}
	return c.Check(r, time.Now())
}

func TestMake(t *testing.T) {
	a := Authority{key.Ring{Dir: &statedir.Dir{Root: t.TempDir()}}}
	if _, err := a.Show(); turnstone.KindOf(err) != turnstone.KindNotFound ||
		turnstone.HintOf(err) == "" {
		t.Error(err)
	}
	if _, err := rotate(t, a); turnstone.KindOf(err) != turnstone.KindNotFound {
		t.Error(err)
	}
	r, err := a.Make(t.Context(), nil)
	if err != nil || r.Epoch != 1 || !strings.HasPrefix(r.ID(), "SHA256:") {
		t.Fatal(r, err)
	}
	if _, err := a.Make(t.Context(), nil); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Errorf("a second root: %v", err)
	}
	for _, file := range []string{"root-1", "root.json"} {
		i, err := os.Stat(a.Ring.Dir.Path("keys", file))
		if err != nil || i.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", file, i, err)
		}
	}
	// a lost record does not cost the key
	if err := os.Remove(a.path()); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Make(t.Context(), nil); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Errorf("a root in place of a key: %v", err)
	}
}

// rotate is Rotate without a passphrase and without certificates.
func rotate(t testing.TB, a Authority) (*Record, error) {
	r, _, err := a.Rotate(t.Context(), nil)
	return r, err
}

// TestPassphrase: a root with a passphrase signs with it only, and rotates to one with another.
func TestPassphrase(t *testing.T) {
	a := Authority{key.Ring{Dir: &statedir.Dir{Root: t.TempDir()}}}
	if _, err := a.Make(t.Context(), []byte("one")); err != nil {
		t.Fatal(err)
	}
	q := Request{Key: node(t, 1), For: time.Hour}
	if _, err := a.Sign(t.Context(), q); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Errorf("without the passphrase: %v", err)
	}
	answer := "two"
	a.Ring.Ask = func(string) ([]byte, error) { return []byte(answer), nil }
	if _, err := a.Sign(t.Context(), q); turnstone.KindOf(err) != turnstone.KindInvalid ||
		strings.Contains(err.Error(), "two") {
		t.Errorf("with another one: %v", err)
	}
	answer = "one"
	if _, err := a.Sign(t.Context(), q); err != nil {
		t.Error(err)
	}
	if _, _, err := a.Rotate(t.Context(), []byte("two")); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Sign(t.Context(), q); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Errorf("the new root with the old passphrase: %v", err)
	}
}

// TestRevoke: a revoked node gets no certificate, and clients that see those of the others refuse
// its earlier one.
func TestRevoke(t *testing.T) {
	a, r := made(t)
	one, two := sign(t, a, 1, "n1"), sign(t, a, 2, "n2")
	fresh := attest.Root{Key: r.Root}
	r, all, err := a.Revoke(t.Context(), []string{"n2"}, 0)
	if err != nil || r.Epoch != 2 || len(all) != 1 || all[0].Node != "n1" || len(r.Nodes) != 1 ||
		len(r.Revoked) != 1 || r.Revoked[0].Key != node(t, 2).ID() {
		t.Fatal(r, all, err)
	}
	if !all[0].Time.Equal(one.Time) || !all[0].Expires.Equal(one.Expires) {
		t.Error("the new certificate has other times")
	}
	if _, err := believe(t, two.Chain, fresh); err != nil {
		t.Errorf("a client that has seen nothing: %v", err)
	}
	seen, err := believe(t, all[0].Chain, fresh)
	if err != nil || seen.Epoch != 2 {
		t.Fatal(seen, err)
	}
	if _, err := believe(t, two.Chain, seen); channel.FaultOf(err) != attest.FaultOldEpoch {
		t.Errorf("a client that has seen the new epoch: %v", err)
	}
	if _, err := a.Sign(t.Context(), Request{Key: node(t, 2), For: time.Hour}); err == nil ||
		!strings.Contains(err.Error(), "revoked") || turnstone.HintOf(err) == "" {
		t.Errorf("a certificate for a revoked key: %v", err)
	}
	sign(t, a, 3, "n2") // a new key of the same node
	if _, _, err := a.Revoke(t.Context(), []string{"n9"}, 0); turnstone.KindOf(err) !=
		turnstone.KindNotFound {
		t.Error(err)
	}
	for _, epoch := range []uint64{1, 2, attest.MaxEpoch + 1} {
		if _, _, err := a.Revoke(t.Context(), nil, epoch); turnstone.KindOf(err) !=
			turnstone.KindInvalid {
			t.Errorf("epoch %d: %v", epoch, err)
		}
	}
	// a key that has no certificate in the record, such as an earlier one of a node
	r, all, err = a.Revoke(t.Context(), []string{node(t, 7).ID(), node(t, 1).String()}, 9)
	if err != nil || r.Epoch != 9 || len(r.Revoked) != 3 || len(all) != 1 ||
		all[0].Key != node(t, 3).String() {
		t.Fatal(r, all, err)
	}
	if r, err := a.Show(); err != nil || r.Epoch != 9 || len(r.Revoked) != 3 || len(r.Nodes) != 1 {
		t.Error(r, err)
	}
}

// TestRotate: clients that pin any earlier root follow, up to the bound; those that have followed
// believe no earlier one.
func TestRotate(t *testing.T) {
	a, r := made(t)
	old := sign(t, a, 1, "n1")
	first := attest.Root{Key: r.Root, Epoch: 1}
	pins := []attest.Root{first}
	var last *Signed
	for range attest.MaxSuccessions + 1 {
		now, all, err := a.Rotate(t.Context(), nil)
		if err != nil || len(all) != 1 {
			t.Fatal(all, err)
		}
		last = all[0]
		pins = append(pins, attest.Root{Key: now.Root, Epoch: now.Epoch})
	}
	newest := pins[len(pins)-1]
	for i, pin := range pins {
		known, err := believe(t, last.Chain, pin)
		if i == 0 { // too long ago
			if channel.FaultOf(err) != attest.FaultOtherRoot {
				t.Error(err)
			}
			continue
		}
		if err != nil || known != newest {
			t.Errorf("root %d: %v, %v", i, known, err)
		}
	}
	if _, err := believe(t, old.Chain, newest); channel.FaultOf(err) != attest.FaultOtherRoot {
		t.Error(err)
	}
	if s := sign(t, a, 2, "n2"); s.Signer != newest.Key || s.Epoch != newest.Epoch {
		t.Error("another root signs")
	}
}

// TestSign: the same name takes the earlier certificate's place in the record; what is not of this
// root's directory is refused.
func TestSign(t *testing.T) {
	a, _ := made(t)
	sign(t, a, 1, "n1")
	sign(t, a, 2, "n1")
	sign(t, a, 3, "")
	sign(t, a, 3, "")
	r, err := a.Show()
	if err != nil || len(r.Nodes) != 2 || r.Nodes[1].ID() != node(t, 2).ID() {
		t.Fatal(r, err)
	}
	for name, q := range map[string]Request{
		"no time":    {Key: node(t, 1)},
		"too long":   {Key: node(t, 1), For: attest.MaxCertificateValidity + time.Minute},
		"a bad name": {Key: node(t, 1), Name: "../n1", For: time.Hour},
	} {
		if _, err := a.Sign(t.Context(), q); turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	other, _ := made(t)
	b, err := os.ReadFile(other.path())
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"another root's record": string(b), "no JSON": "x",
		"no root": "{}", "no epoch": `{"root":"` + r.Root + `"}`} {
		if err := os.WriteFile(a.path(), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := a.Sign(t.Context(), Request{Key: node(t, 1), For: time.Hour}); turnstone.KindOf(
			err) != turnstone.KindInvalid || turnstone.HintOf(err) == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestTogether: no certificate is lost from the record when several are signed at the same time.
func TestTogether(t *testing.T) {
	a, _ := made(t)
	var wg sync.WaitGroup
	for i := range byte(8) {
		wg.Go(func() {
			if _, err := a.Sign(t.Context(), Request{Key: node(t, i+1), For: time.Hour}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if r, err := a.Show(); err != nil || len(r.Nodes) != 8 {
		t.Error(len(r.Nodes), err)
	}
}

// TestSignedTimes: when all certificates are signed again, a node keeps the time of the one that it
// has, whatever was signed for it besides.
func TestSignedTimes(t *testing.T) {
	now := time.Now().UTC().Truncate(time.Second)
	const day = 24 * time.Hour
	span := func(from, to time.Duration) [2]time.Time { return [2]time.Time{now.Add(from), now.Add(to)} }
	for what, tc := range map[string]struct {
		signed [][2]time.Time
		want   [2]time.Time
	}{
		"the next one, in advance":  {[][2]time.Time{span(-day, 30*day), span(20*day, 90*day)}, span(-day, 90*day)},
		"the next one, with a gap":  {[][2]time.Time{span(-day, 30*day), span(40*day, 90*day)}, span(-day, 30*day)},
		"the next one, first":       {[][2]time.Time{span(40*day, 90*day), span(-day, 30*day)}, span(-day, 30*day)},
		"a short one":               {[][2]time.Time{span(-day, 30*day), span(0, time.Minute)}, span(-day, 30*day)},
		"one that has expired":      {[][2]time.Time{span(-day, 30*day), span(-9*day, -8*day)}, span(-day, 30*day)},
		"after one that expired":    {[][2]time.Time{span(-9*day, -8*day), span(-day, 30*day)}, span(-day, 30*day)},
		"more than a year together": {[][2]time.Time{span(-300*day, 30*day), span(0, 360*day)}, span(-6*day, 360*day)},
		"more than a year ahead":    {[][2]time.Time{span(-day, 30*day), span(29*day, 390*day)}, span(-day, 365*day)},
	} {
		a, _ := made(t)
		for _, s := range tc.signed {
			if _, err := a.Sign(t.Context(), Request{Key: node(t, 1), Name: "n1", From: s[0],
				For: s[1].Sub(s[0])}); err != nil {
				t.Fatal(err)
			}
		}
		_, all, err := a.Revoke(t.Context(), nil, 0)
		if err != nil || len(all) != 1 || !all[0].Time.Equal(tc.want[0]) ||
			!all[0].Expires.Equal(tc.want[1]) {
			t.Errorf("%s: %+v: %v", what, all, err)
		}
	}
}
