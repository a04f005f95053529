package bundle

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/proof"
	"turnstone.dev/turnstone/internal/repo/chain"
	"turnstone.dev/turnstone/internal/repo/repotest"
)

func export(t *testing.T, p *repotest.Past) []byte {
	t.Helper()
	var out bytes.Buffer
	ok[*turnstone.ExportReport](t)(host(p.Repo).Export(t.Context(),
		ExportRequest{Session: "story"}, &out))
	return out.Bytes()
}

// signedStory is a signed session: turns 1, 2 and 4 on main, and 3 on side.
func signedStory(t *testing.T) *repotest.Past {
	t.Helper()
	p := repotest.New(t).Sign()
	s := p.Session("story")
	p.Turn(s, "main")
	p.Turn(s, "main")
	ok[turnstone.Branch](t)(p.Repo.Fork(t.Context(), "story@1", "side"))
	p.Turn(s, "side")
	p.Turn(s, "main")
	return p
}

// unnamed is the message about an object that a changed file has too many.
var unnamed = regexp.MustCompile(`has the object (?:sha256:)?(\w+), which no other object names`)

// importChanged imports a file whose head f has changed, without the objects that the change left
// without a name, as a forger would remove them.
func importChanged(t *testing.T, q *repotest.Past, file []byte, f func(h *exportHead)) error {
	t.Helper()
	all := repotest.Unpack(t, file)
	var h exportHead
	if err := json.Unmarshal(all[0].Data, &h); err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(h.Turns, func(a, b turnstone.Turn) int { return a.Number - b.Number })
	f(&h)
	all[0] = repotest.Entry{Name: "session.json", Data: ok[[]byte](t)(json.Marshal(h)),
		Kind: tar.TypeReg}
	for {
		_, err := host(q.Repo).Import(t.Context(), ImportRequest{},
			bytes.NewReader(repotest.Pack(t, all)))
		if err == nil {
			return nil
		}
		m := unnamed.FindStringSubmatch(err.Error())
		if m == nil {
			return err
		}
		all = slices.DeleteFunc(all, func(e repotest.Entry) bool {
			return strings.HasPrefix(e.Name, "objects/"+m[1])
		})
	}
}

// TestImportForgedChain: a machine that has never seen the session, and trusts none of its keys,
// refuses each change of its history.
func TestImportForgedChain(t *testing.T) {
	file := export(t, signedStory(t))
	stranger := export(t, signedStory(t))
	var other exportHead
	if err := json.Unmarshal(repotest.Unpack(t, stranger)[0].Data, &other); err != nil {
		t.Fatal(err)
	}
	head := func(h *exportHead, branch string) *turnstone.Branch {
		return &h.Branches[slices.IndexFunc(h.Branches,
			func(b turnstone.Branch) bool { return b.Name == branch })]
	}
	for what, c := range map[string]struct {
		change func(h *exportHead)
		why    string
	}{
		"another title":   {func(h *exportHead) { h.Turns[1].Title = "x" }, "title"},
		"another number":  {func(h *exportHead) { h.Turns[3].Number = 7 }, ""},
		"re-parented":     {func(h *exportHead) { h.Turns[3].Parents = h.Turns[1].Parents }, ""},
		"not signed":      {func(h *exportHead) { h.Turns[1].Statement, h.Turns[1].Envelope = "", "" }, "parents"},
		"head not signed": {func(h *exportHead) { h.Turns[3].Statement, h.Turns[3].Envelope = "", "" }, "log of heads"},
		"envelopes swapped": {func(h *exportHead) {
			a, b := &h.Turns[1], &h.Turns[2]
			a.Envelope, b.Envelope = b.Envelope, a.Envelope
		}, ""},
		"statements swapped": {func(h *exportHead) {
			a, b := &h.Turns[1], &h.Turns[2]
			a.Envelope, b.Envelope, a.Statement, b.Statement = b.Envelope, a.Envelope, b.Statement, a.Statement
		}, ""},
		"the last turn dropped": {func(h *exportHead) {
			head(h, "main").Head = h.Turns[1].ID
			h.Turns = h.Turns[:3]
		}, "is gone"},
		"a turn in between dropped": {func(h *exportHead) {
			h.Turns[3].Parents = h.Turns[1].Parents
			h.Turns = slices.Delete(h.Turns, 1, 2)
		}, ""},
		"an old head":      {func(h *exportHead) { head(h, "main").Head = h.Turns[1].ID }, "branch main ended with turn 4"},
		"a branch moved":   {func(h *exportHead) { head(h, "side").Head = h.Turns[3].ID }, "branch side ended with turn 3"},
		"branches renamed": {func(h *exportHead) { head(h, "side").Name = "aside" }, "aside"},
		"a branch more": {func(h *exportHead) {
			b := *head(h, "side")
			b.Name = "evil"
			h.Branches = append(h.Branches, b)
		}, "branch evil"},
		"a branch less": {func(h *exportHead) {
			h.Branches = slices.DeleteFunc(h.Branches,
				func(b turnstone.Branch) bool { return b.Name == "side" })
		}, "branch side"},
		"no log":                {func(h *exportHead) { h.Heads = nil }, "has no entry"},
		"the first entry lost":  {func(h *exportHead) { h.Heads = h.Heads[1:] }, "entry 1"},
		"an entry lost":         {func(h *exportHead) { h.Heads = slices.Delete(h.Heads, 2, 3) }, "entry 3"},
		"the last entry lost":   {func(h *exportHead) { h.Heads = h.Heads[:len(h.Heads)-1] }, "log of heads"},
		"entries swapped":       {func(h *exportHead) { h.Heads[1], h.Heads[2] = h.Heads[2], h.Heads[1] }, "entry 2"},
		"an entry twice":        {func(h *exportHead) { h.Heads = append(h.Heads, h.Heads[0]) }, "entry 6"},
		"a stranger's log":      {func(h *exportHead) { h.Heads = other.Heads }, "entry 1"},
		"a stranger's entry":    {func(h *exportHead) { h.Heads[4] = other.Heads[4] }, "entry 5"},
		"an entry of no object": {func(h *exportHead) { h.Heads[0] = json.RawMessage(`{}`) }, "entry 1"},
	} {
		q := repotest.New(t)
		err := importChanged(t, q, file, c.change)
		k := turnstone.KindOf(err)
		if k != turnstone.KindIntegrity && k != turnstone.KindInvalid ||
			!strings.Contains(err.Error(), c.why) {
			t.Errorf("%s: %v", what, err)
		}
		if all := ok[[]turnstone.SessionInfo](t)(q.Repo.Sessions(t.Context())); len(all) != 0 {
			t.Errorf("%s: left %v", what, all)
		}
	}
	if err := importChanged(t, repotest.New(t), file, func(*exportHead) {}); err != nil {
		t.Errorf("unchanged: %v", err)
	}
}

// TestImportHistory: a machine that has seen a session notices an older state of it, and another
// continuation, also after the session was removed.
func TestImportHistory(t *testing.T) {
	p := signedStory(t)
	older := export(t, p)
	s := p.Session("story")
	p.Turn(s, "main")
	later := export(t, p)

	// Another machine continues from the older state, with a key of its own.
	r := repotest.New(t)
	load := func(to *repotest.Past, file []byte, accept bool) error {
		_, err := host(to.Repo).Import(t.Context(), ImportRequest{AcceptHistory: accept},
			bytes.NewReader(file))
		return err
	}
	if err := load(r, older, false); err != nil {
		t.Fatal(err)
	}
	r.Sign().Turn(r.Session("story"), "main")
	fork := export(t, r)

	q := repotest.New(t)
	for _, c := range []struct {
		what   string
		file   []byte
		accept bool
		why    string // of the refusal
	}{
		{"the first that is seen", older, false, ""},
		{"a continuation", later, false, ""},
		{"an old state", older, false, "an older state"},
		{"a fork", fork, false, "forks away from what was seen here, at entry 6"},
		{"the same again", later, false, ""},
		{"a fork that is accepted", fork, true, ""},
		{"now the other one is the fork", later, false, "forks away"},
	} {
		err := load(q, c.file, c.accept)
		if c.why == "" && err != nil || c.why != "" && (turnstone.KindOf(err) !=
			turnstone.KindIntegrity || !strings.Contains(err.Error(), c.why)) {
			t.Errorf("%s: %v", c.what, err)
		}
		if err == nil {
			cs := q.CS
			if err := cs.DB.Remove(t.Context(), s.ID); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := load(q, fork, false); err != nil {
		t.Fatal(err)
	}
	// The forged continuation is signed by a key that is not that of the session's node.
	trust, err := proof.Trusted(p.Repo.Dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	rep := ok[*turnstone.VerifyReport](t)(chain.Verify(t.Context(), q.Repo,
		chain.Request{Ref: "story", All: true, Trust: trust}))
	if rep.OK || rep.OnlyUnsigned() || !strings.Contains(rep.Problems[0].Error, "is not trusted") {
		t.Errorf("%+v", rep.Problems)
	}
}
