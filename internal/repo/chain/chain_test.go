package chain_test

import (
	"bytes"
	"context"
	"database/sql"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/proof"
	"turnstone.dev/turnstone/internal/proof/key"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/repo/chain"
	"turnstone.dev/turnstone/internal/repo/repotest"
	"turnstone.dev/turnstone/internal/repo/trace"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/store"
	"turnstone.dev/turnstone/internal/store/session"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
)

func ok[T any](t testing.TB) func(v T, err error) T { return repotest.OK[T](t) }

// story is a session with a fork: turns 1, 2 and 4 on main, and 3 on explore. Each has a trace.
func story(t testing.TB) *repotest.Past {
	t.Helper()
	p := repotest.New(t).Sign()
	s := p.Session("story")
	turn := func(branch, text string) {
		p.Commit(s, branch, func(b *store.Batch, rec *turnstone.TurnRecord) turnstone.TurnState {
			var lines bytes.Buffer
			w := ok[*trace.Writer](t)(trace.Begin(&lines, turnstone.TraceHead{ID: rec.ID,
				Session: rec.Session, Number: rec.Number}))
			if err := w.Step(turnstone.TraceStep{Index: 1}, []turnstone.CommandReport{
				{Text: text}}); err != nil {
				t.Fatal(err)
			}
			if err := w.End(); err != nil {
				t.Fatal(err)
			}
			c := p.Content(b, lines.String())
			rec.Trace = &c
			stdout := p.Content(b, "output "+text)
			rec.Steps = []turnstone.RecordStep{{Name: "a", Status: turnstone.StepPassed,
				Stdout: &stdout}}
			return turnstone.TurnState{Image: "base", Cwd: "/",
				Tree: treetest.Make(t, b, treetest.Texts(map[string]string{"/f": text})...)}
		})
	}
	turn("main", "one")
	turn("main", "two")
	ok[turnstone.Branch](t)(p.Repo.Fork(t.Context(), "story@1", "explore"))
	turn("explore", "three")
	turn("main", "four")
	return p
}

func verify(t testing.TB, r *repo.Repo, ref string, all bool) *turnstone.VerifyReport {
	t.Helper()
	trust, err := key.Ring{Dir: r.Dir}.ListOf(nil)
	if err != nil {
		t.Fatal(err)
	}
	return ok[*turnstone.VerifyReport](t)(chain.Verify(context.Background(), r, chain.Request{
		Ref: ref, All: all, Trust: trust}))
}

// TestVerify: a chain is walked to its root, and the store is read.
func TestVerify(t *testing.T) {
	p := story(t)
	one := verify(t, p.Repo, "story@4", false)
	if !one.OK || !one.Signed || len(one.Turns) != 3 || one.Turns[0].Number != 4 ||
		one.Turns[0].Parents[0] != one.Turns[1].Statement || one.Objects < 10 ||
		one.Turns[0].Vouchers[0].Role != "node" {
		t.Errorf("%+v", one)
	}
	all := verify(t, p.Repo, "story", true)
	if !all.OK || len(all.Turns) != 4 || all.Heads != 5 {
		t.Errorf("%+v", all)
	}
	receipt := ok[[]byte](t)(p.Repo.Receipt(t.Context(), "story@2"))
	trust, err := key.Ring{Dir: p.Repo.Dir}.ListOf(nil)
	if err != nil {
		t.Fatal(err)
	}
	if rep := proof.VerifyReceipt(t.Context(), "r.md", receipt, trust); !rep.OK ||
		rep.Turns[0].Statement != one.Turns[1].Statement {
		t.Errorf("%+v", rep)
	}
}

// TestOldTurns: a chain may begin with turns that an older program kept. They are not signed, which
// is not the same as a chain that does not verify; a signed turn holds them all the same.
func TestOldTurns(t *testing.T) {
	p := repotest.New(t)
	s := p.Session("story")
	p.Turn(s, "main")
	p.Sign().Turn(s, "main")
	rep := verify(t, p.Repo, "story@2", false)
	if rep.OK || rep.Signed || !rep.OnlyUnsigned() || len(rep.Problems) != 1 {
		t.Errorf("%+v", rep)
	}
	change(t, p, `UPDATE turns SET title = 'another' WHERE number = 2`)
	if rep := verify(t, p.Repo, "story@2", false); rep.OnlyUnsigned() {
		t.Errorf("%+v", rep)
	}
}

// change changes the database of sessions behind the program's back.
func change(t testing.TB, p *repotest.Past, text string, args ...any) {
	t.Helper()
	db := ok[*sql.DB](t)(sql.Open("sqlite", p.Repo.Dir.Path("context.db")))
	defer func() { _ = db.Close() }()
	res, err := db.Exec(text, args...)
	if err != nil {
		t.Fatal(err)
	}
	if n, _ := res.RowsAffected(); n == 0 {
		t.Fatalf("%s changes nothing", text)
	}
}

// TestChanged: each change of the sessions is refused, with a message that names the place.
func TestChanged(t *testing.T) {
	for what, c := range map[string]struct{ text, where, why string }{
		"a title":            {`UPDATE turns SET title = 'x' WHERE number = 2`, "turn 2", "title"},
		"a number":           {`UPDATE turns SET number = 9 WHERE number = 2`, "turn 9", ""},
		"a branch":           {`UPDATE turns SET branch = 'x' WHERE number = 2`, "turn 2", ""},
		"a result":           {`UPDATE turns SET result = 'failed' WHERE number = 2`, "turn 2", ""},
		"a state":            {`UPDATE turns SET state = (SELECT state FROM turns WHERE number = 1) WHERE number = 2`, "turn 2", ""},
		"another's record":   {`UPDATE turns SET record = (SELECT record FROM turns WHERE number = 1) WHERE number = 2`, "turn 2", ""},
		"another's envelope": {`UPDATE turns SET envelope = (SELECT envelope FROM turns WHERE number = 1), statement = (SELECT statement FROM turns WHERE number = 1) WHERE number = 2`, "turn 2", "statement"},
		"another envelope":   {`UPDATE turns SET envelope = (SELECT envelope FROM turns WHERE number = 1) WHERE number = 2`, "turn 2", ""},
		"another statement":  {`UPDATE turns SET statement = (SELECT statement FROM turns WHERE number = 1) WHERE number = 2`, "turn 2", ""},
		"a lost statement":   {`UPDATE turns SET statement = '', envelope = '' WHERE number = 2`, "turn 4", "parents"},
		"re-parented":        {`UPDATE parents SET parent = (SELECT id FROM turns WHERE number = 1) WHERE turn = (SELECT id FROM turns WHERE number = 4)`, "turn 4", ""},
		"no parent":          {`DELETE FROM parents WHERE turn = (SELECT id FROM turns WHERE number = 4)`, "turn 4", ""},
		"an old head":        {`UPDATE branches SET head = (SELECT id FROM turns WHERE number = 2) WHERE name = 'main'`, "log of heads", "branch main ended with turn 4"},
		"another head":       {`UPDATE branches SET head = (SELECT id FROM turns WHERE number = 4) WHERE name = 'explore'`, "log of heads", "branch explore ended with turn 3"},
		"another branch":     {`INSERT INTO branches SELECT session, 'evil', head, created FROM branches WHERE name = 'explore'`, "log of heads", "branch evil ends with the signed turn 3"},
		"a hidden turn":      {`UPDATE turns SET status = 'running', title = 'x' WHERE number = 2`, "turn 2", ""},
		"a lost branch":      {`DELETE FROM branches WHERE name = 'explore'`, "log of heads", "is gone"},
		"a lost entry":       {`DELETE FROM heads WHERE sequence = 3`, "log of heads", "number 4"},
		"a lost last entry":  {`DELETE FROM heads WHERE sequence = 1`, "log of heads", "entry 1"},
		"entries swapped":    {`UPDATE heads SET envelope = (SELECT envelope FROM heads WHERE sequence = 2) WHERE sequence = 1`, "log of heads", "entry 1"},
	} {
		p := story(t)
		change(t, p, c.text)
		rep := verify(t, p.Repo, "story", true)
		found := false
		for _, problem := range rep.Problems {
			found = found || problem.Signed && strings.Contains(problem.Where, c.where) &&
				strings.Contains(problem.Where+problem.Error, c.why)
		}
		if rep.OK || !found {
			t.Errorf("%s: %+v", what, rep.Problems)
		}
	}
}

// TestClock: a host whose clock is outside of the years of statements runs no turn.
func TestClock(t *testing.T) {
	for year, good := range map[int]bool{1960: false, 1969: false, 1970: true, 2026: true,
		2100: true, 2101: false, 9999: false} {
		err := chain.CheckClock(time.Date(year, 6, 1, 0, 0, 0, 0, time.UTC))
		if (err == nil) != good || !good && turnstone.HintOf(err) == "" {
			t.Errorf("%d: %v", year, err)
		}
	}
}

// TestRevokedSigner: a key that is revoked signs no further turn, because none would verify.
func TestRevokedSigner(t *testing.T) {
	p := story(t)
	ring := chain.Ring(p.Repo.Dir, nil)
	node := ok[*key.Signer](t)(ring.NodeKey(t.Context()))
	ok[string](t)(ring.Revoke(t.Context(), node.ID()))
	if _, err := chain.Open(t.Context(), p.Repo.Dir, p.CS, nil); err == nil ||
		!strings.Contains(err.Error(), "is revoked") || turnstone.HintOf(err) == "" {
		t.Error(err)
	}
	if _, _, err := ring.Rotate(t.Context(), key.Node, nil); err != nil {
		t.Fatal(err)
	}
	ok[*chain.Keys](t)(chain.Open(t.Context(), p.Repo.Dir, p.CS, nil))
}

// anything allows everything, to a context that is limited all the same.
type anything struct{}

func (anything) May(context.Context, turnstone.Session) error  { return nil }
func (anything) Made(context.Context, turnstone.Session) error { return nil }
func (anything) Owner() string                                 { return "somebody" }

// TestRemoteCaller: the key of this host's user signs the user's turns, and none of a remote client.
func TestRemoteCaller(t *testing.T) {
	p := repotest.New(t)
	ok[*key.Signer](t)(chain.Ring(p.Repo.Dir, nil).Make(t.Context(), key.Caller, nil))
	for name, c := range map[string]struct {
		ctx      context.Context
		vouchers int
	}{"own": {t.Context(), 2}, "remote": {session.WithAccess(t.Context(), anything{}), 1}} {
		p.Keys = ok[*chain.Keys](t)(chain.Open(c.ctx, p.Repo.Dir, p.CS, nil))
		p.Turn(p.Session(name), "main", treetest.File{Path: "/f", Data: "x"})
		rep := verify(t, p.Repo, name, false)
		if !rep.OK || len(rep.Turns) != 1 || len(rep.Turns[0].Vouchers) != c.vouchers {
			t.Errorf("%s: %+v", name, rep)
		}
	}
}

// TestSignTurn: a caller adds a signature to a turn that its node signed alone. The turns above it
// verify as before.
func TestSignTurn(t *testing.T) {
	p := story(t)
	before := verify(t, p.Repo, "story@4", false)
	if _, err := chain.SignTurn(t.Context(), p.Repo, "story@2"); turnstone.KindOf(err) !=
		turnstone.KindNotFound || turnstone.HintOf(err) == "" {
		t.Errorf("without a key: %v", err)
	}
	ring := chain.Ring(p.Repo.Dir, nil)
	ok[*key.Signer](t)(ring.Make(t.Context(), key.Caller, nil))
	receipt := ok[[]byte](t)(p.Repo.Receipt(t.Context(), "story@2"))
	what := ok[*turnstone.VerifiedTurn](t)(chain.SignTurn(t.Context(), p.Repo, "story@2"))
	if what.Number != 2 || len(what.Vouchers) != 2 || !what.Vouchers[1].Later {
		t.Errorf("%+v", what)
	}
	rep := verify(t, p.Repo, "story", true)
	if two := rep.Turns[2]; !rep.OK || two.Number != 2 || len(two.Vouchers) != 2 ||
		!two.Vouchers[1].Later || two.Statement != before.Turns[1].Statement {
		t.Errorf("%+v", rep)
	}
	signed, what, err := proof.SignReceipt(t.Context(), ring, trustOf(t, ring), "r.md", receipt)
	if err != nil || what.Number != 2 || what.Vouchers[1].Role != string(key.Caller) {
		t.Fatal(what, err)
	}
	if now := ok[[]byte](t)(p.Repo.Receipt(t.Context(), "story@2")); !bytes.Equal(now, signed) {
		t.Errorf("%s\n%s", now, signed)
	}
	_, twice := chain.SignTurn(t.Context(), p.Repo, "story@2")
	_, _, again := proof.SignReceipt(t.Context(), ring, trustOf(t, ring), "r.md", signed)
	if turnstone.KindOf(twice) != turnstone.KindInvalid ||
		turnstone.KindOf(again) != turnstone.KindInvalid {
		t.Errorf("twice: %v, %v", twice, again)
	}
	change(t, p, `UPDATE turns SET title = 'x' WHERE number = 4`)
	_, turnErr := chain.SignTurn(t.Context(), p.Repo, "story@4")
	_, _, receiptErr := proof.SignReceipt(t.Context(), ring, trustOf(t, ring), "r.md",
		bytes.Replace(receipt, []byte("# Turn"), []byte("# Turm"), 1))
	if turnstone.KindOf(turnErr) != turnstone.KindIntegrity ||
		turnstone.KindOf(receiptErr) != turnstone.KindIntegrity {
		t.Errorf("what does not verify is signed: %v, %v", turnErr, receiptErr)
	}
}

// TestLyingNode: a node whose key is trusted signs a statement that says something else than the text
// of its receipt, or of a turn that it keeps. It does not verify, and the caller does not sign it.
func TestLyingNode(t *testing.T) {
	p := story(t)
	ring := chain.Ring(p.Repo.Dir, nil)
	ok[*key.Signer](t)(ring.Make(t.Context(), key.Caller, nil))
	node := ok[*key.Signer](t)(ring.NodeKey(t.Context()))
	trust := ok[*key.Trust](t)(ring.List())
	receipt := ok[[]byte](t)(p.Repo.Receipt(t.Context(), "story@2"))
	forge := func(text []byte, lie func(*proof.Statement)) []byte {
		_, s, err := proof.OpenText(t.Context(), "r.md", receipt)
		if err != nil {
			t.Fatal(err)
		}
		s.Subjects.Receipt = turnstone.DigestBytes(text)
		lie(s.Statement)
		return proof.Attach(text, ok[*proof.Signed](t)(proof.Sign(t.Context(), s.Statement, node)))
	}
	text, _, err := proof.OpenText(t.Context(), "r.md", receipt)
	if err != nil {
		t.Fatal(err)
	}
	other := turnstone.DigestBytes([]byte("other"))
	for name, file := range map[string][]byte{
		"document: ": forge(text, func(s *proof.Statement) { s.Predicate.Document = other }),
		"result: ": forge(text, func(s *proof.Statement) {
			s.Predicate.Turn.Result = turnstone.ResultFailed
		}),
		"number: ":  forge(text, func(s *proof.Statement) { s.Predicate.Turn.Number = 7 }),
		"FS hash: ": forge(text, func(s *proof.Statement) { s.Predicate.FS = other }),
		"parents: ": forge(text, func(s *proof.Statement) { s.Predicate.Parents = nil }),
		"determinism: ": forge(text, func(s *proof.Statement) {
			s.Predicate.Determinism = &proof.Determinism{Tier: "strict", Seed: "1",
				Clock: s.Predicate.Time}
		}),
		"is no receipt": forge([]byte("# Paid\n"), func(*proof.Statement) {}),
	} {
		rep := proof.VerifyReceipt(t.Context(), "r.md", file, trust)
		if rep.OK || len(rep.Problems) != 1 || !strings.Contains(rep.Problems[0].Error, name) {
			t.Errorf("%s: %+v", name, rep.Problems)
		}
		_, _, err := proof.SignReceipt(t.Context(), ring, trustOf(t, ring), "r.md", file)
		if turnstone.KindOf(err) != turnstone.KindIntegrity || turnstone.HintOf(err) == "" {
			t.Errorf("%s: the caller signs it: %v", name, err)
		}
	}
	same := forge(text, func(*proof.Statement) {})
	if rep := proof.VerifyReceipt(t.Context(), "r.md", same, trust); !rep.OK {
		t.Errorf("%+v", rep.Problems)
	}
}

// TestRotatedMeanwhile: turns that run while keys are rotated verify.
func TestRotatedMeanwhile(t *testing.T) {
	p := story(t)
	ring := chain.Ring(p.Repo.Dir, nil)
	ok[*key.Signer](t)(ring.Make(t.Context(), key.Caller, nil))
	s := p.Sign().Session("story") // the turns have begun
	for _, pass := range []string{"", "secret"} {
		for _, role := range []key.Role{key.Node, key.Caller} {
			if role == key.Node && pass != "" {
				continue
			}
			if _, _, err := ring.Rotate(t.Context(), role, []byte(pass)); err != nil {
				t.Fatal(err)
			}
		}
		// The old keys are trusted until the end of this second.
		time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(1010 * time.Millisecond)))
		p.Turn(s, "main")
	}
	rep := verify(t, p.Repo, "story", true)
	if !rep.OK || len(rep.Turns[1].Vouchers) != 2 || len(rep.Turns[0].Vouchers) != 1 {
		t.Errorf("%+v", rep)
	}
}

// TestDroppedTurns: the turns at the end of a branch are dropped with all that names them.
func TestDroppedTurns(t *testing.T) {
	p := story(t)
	change(t, p, `UPDATE branches SET head = (SELECT id FROM turns WHERE number = 2) WHERE name = 'main'`)
	change(t, p, `DELETE FROM turns WHERE number = 4`)
	rep := verify(t, p.Repo, "story", true)
	if rep.OK || !strings.Contains(rep.Problems[0].Error, "which is gone") {
		t.Errorf("%+v", rep.Problems)
	}
}

// TestEmptied: a session without turns does not verify, also where no trace of earlier ones is left.
func TestEmptied(t *testing.T) {
	p := story(t)
	for _, table := range []string{"branches", "heads", "turns"} {
		change(t, p, "DELETE FROM "+table)
	}
	rep := verify(t, p.Repo, "story", true)
	if rep.OK || rep.OnlyUnsigned() || len(rep.Problems) != 1 || !strings.Contains(rep.Problems[0].Error, "nothing is verified") {
		t.Errorf("%+v", rep)
	}
}

// TestRolledBack: who writes the database restores an older state, with its log of heads. Nothing in it
// says so, and what others have noted of the log does.
func TestRolledBack(t *testing.T) {
	p := story(t)
	cs := ok[*repo.ContextStore](t)(p.Repo.Open(t.Context()))
	s := ok[turnstone.Session](t)(cs.DB.Find(t.Context(), "story"))
	noted := ok[[]turnstone.LoggedHead](t)(chain.Log(t.Context(), cs, s.ID))
	change(t, p, `UPDATE branches SET head = (SELECT id FROM turns WHERE number = 2) WHERE name = 'main'`)
	change(t, p, `DELETE FROM turns WHERE number = 4`)
	change(t, p, `DELETE FROM heads WHERE sequence = (SELECT max(sequence) FROM heads)`)
	if rep := verify(t, p.Repo, "story", true); !rep.OK || len(rep.Turns) != 3 {
		t.Errorf("%+v", rep.Problems)
	}
	left := ok[[]turnstone.LoggedHead](t)(chain.Log(t.Context(), cs, s.ID))
	if last := noted[len(noted)-1]; len(left) != len(noted)-1 || left[len(left)-1].Digest == last.Digest {
		t.Errorf("%+v", left)
	}
	p.Turn(s, "main") // a turn with the same number, which is another one
	again := ok[[]turnstone.LoggedHead](t)(chain.Log(t.Context(), cs, s.ID))
	if n := len(noted); len(again) != n || again[n-1].Digest == noted[n-1].Digest {
		t.Errorf("%+v", again)
	}
}

// TestKeys: a revoked key and one that is not trusted are refused.
func TestKeys(t *testing.T) {
	p := story(t)
	ring := chain.Ring(p.Repo.Dir, nil)
	stranger := chain.Ring(&statedir.Dir{Root: t.TempDir()}, nil)
	k, err := stranger.NodeKey(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	trust, err := key.Ring{Dir: p.Repo.Dir}.ListOf([]string{"node=" + k.String()})
	if err != nil {
		t.Fatal(err)
	}
	rep := ok[*turnstone.VerifyReport](t)(chain.Verify(t.Context(), p.Repo,
		chain.Request{Ref: "story@1", Trust: trust}))
	if rep.OK || !strings.Contains(rep.Problems[0].Error, "is not trusted") {
		t.Errorf("%+v", rep)
	}
	own, err := ring.Own()
	if err != nil {
		t.Fatal(err)
	}
	ok[string](t)(ring.Revoke(t.Context(), own["node"].ID()))
	if rep := verify(t, p.Repo, "story@1", false); rep.OK ||
		!strings.Contains(rep.Problems[0].Error, "is revoked") {
		t.Errorf("%+v", rep)
	}
	trust, err = key.Ring{Dir: p.Repo.Dir}.ListOf([]string{"node=" + own["node"].String()})
	if err != nil {
		t.Fatal(err)
	}
	if rep := ok[*turnstone.VerifyReport](t)(chain.Verify(t.Context(), p.Repo,
		chain.Request{Ref: "story@1", Trust: trust})); rep.OK {
		t.Error("--trust takes a revocation back")
	}
}

// TestAnyByteOfTheStore: no byte of what the store keeps of a session can change, be it of a record,
// a trace, an output, a file, an envelope or what holds them together.
func TestAnyByteOfTheStore(t *testing.T) {
	p := story(t)
	if !verify(t, p.Repo, "story", true).OK {
		t.Fatal("it does not verify unchanged")
	}
	if err := p.Repo.Close(); err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	err := filepath.WalkDir(p.Repo.Dir.Path("store", "blobs"), func(path string, d fs.DirEntry,
		err error) error {
		if err == nil && d.Type().IsRegular() {
			files[path] = ok[[]byte](t)(os.ReadFile(path))
		}
		return err
	})
	if err != nil || len(files) != 4 { // a pack for each turn
		t.Fatal(err, len(files))
	}
	if err := os.RemoveAll(p.Repo.Dir.Path("store", "index")); err != nil { // made from the packs
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for name, good := range files {
		if err := os.Chmod(name, 0o600); err != nil {
			t.Fatal(err)
		}
		for range 10 {
			i := rng.IntN(len(good))
			bad := bytes.Clone(good)
			bad[i] ^= byte(1 + rng.IntN(255))
			if err := os.WriteFile(name, bad, 0o600); err != nil {
				t.Fatal(err)
			}
			r := repotest.Open(p.Repo.Dir)
			trust, err := key.Ring{Dir: r.Dir}.ListOf(nil)
			if err != nil {
				t.Fatal(err)
			}
			rep, err := chain.Verify(t.Context(), r, chain.Request{Ref: "story", All: true,
				Trust: trust})
			if err == nil && rep.OK {
				t.Errorf("byte %d of %d of %s is not noticed", i, len(bad), name)
			}
			if err := r.Close(); err != nil {
				t.Error(err)
			}
			if err := os.WriteFile(name, good, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// BenchmarkSign measures what signing adds to a turn: the statement, the signature, the envelope.
func BenchmarkSign(b *testing.B) {
	p := repotest.New(b).Sign()
	s := p.Session("story")
	t := p.Turn(s, "main")
	rec := ok[*turnstone.TurnRecord](b)(p.CS.Record(b.Context(), t))
	batch := ok[*store.Batch](b)(p.CS.Store.Begin(b.Context()))
	defer func() { _ = batch.Close() }()
	for b.Loop() {
		ok[*chain.Link](b)(p.Keys.Sign(b.Context(), p.CS, batch, t, rec, t.Record, t.Statement))
	}
}

// BenchmarkOpen measures reading the keys at the beginning of a turn.
func BenchmarkOpen(b *testing.B) {
	p := repotest.New(b).Sign()
	for b.Loop() {
		ok[*chain.Keys](b)(chain.Open(b.Context(), p.Repo.Dir, p.CS, nil))
	}
}

func trustOf(t *testing.T, r key.Ring) *key.Trust {
	t.Helper()
	trust, err := r.List()
	if err != nil {
		t.Fatal(err)
	}
	return trust
}

// TestEarlierForm: a turn whose statement has the form of earlier versions verifies, above and below turns of the present
// form, and its FS hash is compared too.
func TestEarlierForm(t *testing.T) {
	p := story(t)
	node := ok[*key.Signer](t)(chain.Ring(p.Repo.Dir, nil).NodeKey(t.Context()))
	resign := func(lie func(*proof.Statement)) {
		id := verify(t, p.Repo, "story@4", false).Turns[0].ID
		four := ok[turnstone.Turn](t)(p.CS.DB.Turn(t.Context(), id))
		cs := ok[*repo.ContextStore](t)(p.CS.In(t.Context(), four.Domain))
		s := ok[*proof.Signed](t)(proof.Open(t.Context(), ok[[]byte](t)(cs.Store.Get(t.Context(), four.Envelope))))
		s.First = true
		lie(s.Statement)
		first := ok[*proof.Signed](t)(proof.Sign(t.Context(), s.Statement, node))
		b := ok[*store.Batch](t)(cs.Store.Begin(t.Context()))
		defer func() { _ = b.Close() }()
		envelope := ok[turnstone.Digest](t)(b.Put(t.Context(), first.Envelope))
		if err := b.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		change(t, p, `UPDATE turns SET envelope = ?, statement = ? WHERE number = 4`, envelope, first.Link)
	}
	resign(func(*proof.Statement) {})
	rep := verify(t, p.Repo, "story@4", false)
	if !rep.OK || len(rep.Turns) != 3 {
		t.Errorf("%+v", rep)
	}
	p.Turn(p.Session("story"), "main")
	if rep := verify(t, p.Repo, "story@5", false); !rep.OK || len(rep.Turns) != 4 {
		t.Errorf("%+v", rep)
	}
	resign(func(s *proof.Statement) { s.Predicate.FS = turnstone.DigestBytes(nil) })
	if rep := verify(t, p.Repo, "story@4", false); rep.OK || len(rep.Problems) != 1 ||
		!strings.Contains(rep.Problems[0].Error, "subject") {
		t.Errorf("%+v", rep)
	}
}
