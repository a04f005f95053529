package bundle

import (
	"bytes"
	"context"
	"encoding/json"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/repo/chain"
	"turnstone.dev/turnstone/internal/store/session"
)

// readHeads checks the log of heads of the file: its links and signatures.
func (m *importer) readHeads(ctx context.Context, envelopes []json.RawMessage) error {
	var all [][]byte
	for _, e := range envelopes {
		var one bytes.Buffer // the head of a file is indented
		if err := json.Compact(&one, e); err != nil {
			return notExported(err)
		}
		all = append(all, one.Bytes())
	}
	log, err := chain.OpenLog(ctx, m.graph.Session.ID, all)
	if err != nil {
		return notVerified(err)
	}
	m.log = log
	for i, h := range log {
		m.heads = append(m.heads, session.LoggedHead{Session: h.Session, Sequence: h.Sequence,
			Digest: h.Digest, Envelope: all[i]})
	}
	return nil
}

// verifyChain checks the statements of the file's turns, and its branches against the log of heads.
// Signatures are checked with the keys in the statements: an import trusts none of them, and turn
// verify says which keys signed.
func (m *importer) verifyChain(ctx context.Context) error {
	turns := map[turnstone.TurnID]turnstone.Turn{}
	for _, t := range m.graph.Turns {
		turns[t.ID] = t
	}
	parent := func(_ context.Context, id turnstone.TurnID) (turnstone.Turn, error) {
		t, there := turns[id]
		if !there {
			return t, refused("lacks the turn %s", id)
		}
		return t, nil
	}
	for _, t := range m.graph.Turns {
		_, err := chain.Check(ctx, m.cs, t, parent)
		if err != nil && turnstone.KindOf(err) != turnstone.KindNotFound {
			return notVerified(err)
		}
	}
	for _, err := range chain.CheckHeads(&m.graph, m.log) {
		return notVerified(err)
	}
	return nil
}

func notVerified(err error) error {
	return turnstone.NewError("executor.import", turnstone.KindIntegrity, "the file", err).
		WithHint("somebody changed the file or its turns: export the session again")
}
