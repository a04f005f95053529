package sessions

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"reflect"
	"strings"
	"sync"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/server/node/owners"
	"turnstone.dev/turnstone/internal/turnlog"
	"turnstone.dev/turnstone/wire"
)

// who says whom a command is for.
type who int

const (
	anybody  who = iota // it is about no session that it names
	readers             // who may read the session
	writers             // who may change it
	owning              // who owns it
	operator            // the operator alone
)

// commands are all commands of the domains, with parameters that name the session research. A
// command of the descriptor that is not here fails the test.
func commands(s *scene) map[string]struct {
	who    who
	params map[string]any
} {
	type p = map[string]any
	key := s.other.Key.String()
	receipt, err := s.x.Receipt(s.t.Context(), "research@2")
	if err != nil {
		s.t.Fatal(err)
	}
	type c = struct {
		who    who
		params map[string]any
	}
	return map[string]c{
		"Session.list":           {anybody, nil},
		"Session.get":            {readers, p{"session": "research"}},
		"Session.log":            {readers, p{"ref": "research"}},
		"Session.expand":         {readers, p{"ref": "@2", "session": "research"}},
		"Session.current":        {readers, p{"session": "research"}},
		"Session.show":           {readers, p{"ref": "research@2"}},
		"Session.receipt":        {readers, p{"ref": string(s.turns[1].ID)}},
		"Session.trace":          {readers, p{"ref": "research@2"}},
		"Session.listFiles":      {readers, p{"ref": "research@2", "path": "/workspace"}},
		"Session.readFile":       {readers, p{"ref": "research@2", "path": "/workspace/a"}},
		"Session.packFiles":      {readers, p{"ref": "research@2", "path": "/workspace"}},
		"Session.diff":           {readers, p{"from": "research@1", "to": "research@2"}},
		"Session.compare":        {readers, p{"refs": []string{"research@1", "research@2"}}},
		"Session.prepare":        {readers, p{"ref": "research@2"}},
		"Session.fork":           {writers, p{"ref": "research@1", "name": "new"}},
		"Session.forkLive":       {writers, p{"ref": "research@2", "name": "newer"}},
		"Session.tag":            {writers, p{"ref": "research@1", "name": "v1"}},
		"Session.untag":          {writers, p{"session": "research", "tag": "none"}},
		"Session.rename":         {owning, p{"session": "research", "name": "research"}},
		"Session.remove":         {owning, p{"session": "research"}},
		"Session.removeBranch":   {writers, p{"session": "research", "branch": "none"}},
		"Session.merge":          {writers, p{"from": "side", "session": "research", "dryRun": true}},
		"Session.export":         {readers, p{"session": "research"}},
		"Session.import":         {anybody, p{"data": []byte("no bundle")}},
		"Session.verify":         {readers, p{"ref": "research@2"}},
		"Session.signTurn":       {operator, p{"ref": "research@2"}},
		"Session.heads":          {readers, p{"session": "research"}},
		"Session.commitSandbox":  {writers, p{"sandbox": box}},
		"Session.discardSandbox": {writers, p{"sandbox": box}},
		"Session.owners":         {owning, p{"session": "research"}},
		"Session.allow": {owning, p{"session": "research", "client": key,
			"scopes": []string{}, "seconds": 0}},
		"Session.admit":       {anybody, p{"grant": []byte("none")}},
		"Session.unlock":      {anybody, p{"key": make([]byte, 32)}},
		"Session.seal":        {owning, p{"sessions": []string{"research"}}},
		"Session.replay":      {readers, p{"ref": "research@2"}},
		"Session.replayRange": {readers, p{"ref": "research@1..research@2"}},
		"Session.frozen":      {readers, p{"name": "r.md", "receipt": receipt}},
		"Session.bisect":      {readers, p{"ref": "research@1..research@2", "argv": []string{"true"}}},
		"Session.gc":          {operator, p{"dryRun": true}},
		"Session.fsck":        {operator, nil},
		"Session.usage":       {operator, nil},
		"Session.homes":       {anybody, nil},
		"Session.hasHome":     {anybody, p{"name": "h"}},
		"Session.removeHome":  {anybody, p{"name": "h"}},
		"Template.list":       {anybody, nil},
		"Template.build":      {anybody, p{"name": "no-such-template"}},
		"Template.remove":     {operator, p{"name": "base"}},
		"Template.prune":      {operator, p{"dryRun": true}},
	}
}

// A method is a command of the descriptor.
type method struct {
	Name       string
	Parameters []struct {
		Name, Direction string
		Optional        bool
	}
}

func methods(t *testing.T) map[string]method {
	t.Helper()
	var d struct {
		Domains []struct {
			Domain   string
			Commands []method
		}
	}
	if err := json.Unmarshal(wire.Descriptor(), &d); err != nil {
		t.Fatal(err)
	}
	all := map[string]method{}
	for _, dom := range d.Domains {
		if dom.Domain == "Session" || dom.Domain == "Template" {
			for _, c := range dom.Commands {
				all[dom.Domain+"."+c.Name] = c
			}
		}
	}
	return all
}

// call sends a command with its streams, and returns all that the node says, and its error, also
// that of a journal.
func call(t *testing.T, c *wire.Client, name string, m method, params map[string]any) (string,
	error) {
	t.Helper()
	var wg sync.WaitGroup
	var got bytes.Buffer
	var mu sync.Mutex
	var journal bytes.Buffer
	sent := map[string]any{}
	var ends []func()
	for _, p := range m.Parameters {
		value, given := params[p.Name]
		if p.Direction == "" {
			if given {
				sent[p.Name] = value
			}
			continue
		}
		if p.Optional && !given {
			continue
		}
		id := c.NewStream()
		sent[p.Name] = id
		if p.Direction == "receive" {
			out, err := c.Sender(id)
			if err != nil {
				t.Fatal(err)
			}
			if b, ok := value.([]byte); ok {
				wg.Go(func() { _, _ = out.Write(b); _ = out.Close() })
			}
			ends = append(ends, func() { out.Abort(nil) })
			continue
		}
		in, err := c.Receiver(id)
		if err != nil {
			t.Fatal(err)
		}
		ends = append(ends, func() { _ = in.Close() })
		wg.Go(func() {
			b, _ := io.ReadAll(in)
			mu.Lock()
			defer mu.Unlock()
			got.Write(b)
			if p.Name == "journal" {
				journal.Write(b)
			}
		})
	}
	var result json.RawMessage
	err := c.Call(t.Context(), name, typed(t, c, name, sent), &result)
	if err != nil {
		for _, end := range ends {
			end()
		}
	}
	wg.Wait()
	for _, end := range ends {
		end()
	}
	if err == nil && journal.Len() > 0 {
		r := turnlog.NewJobReader(nil)
		if err := r.Read(&journal); err != nil {
			t.Fatal(err)
		}
		_, err = r.Result(new(any))
	}
	return got.String() + string(result), err
}

// typed returns the parameters of a command as the client's own type, which names their streams.
func typed(t *testing.T, c *wire.Client, name string, params map[string]any) any {
	t.Helper()
	domain, command, _ := strings.Cut(name, ".")
	f := reflect.ValueOf(c).MethodByName(domain + strings.ToUpper(command[:1]) + command[1:])
	if !f.IsValid() {
		t.Fatalf("the client has no method for %s", name)
	}
	if f.Type().NumIn() < 2 {
		return nil
	}
	text, err := json.Marshal(params)
	if err != nil {
		t.Fatal(err)
	}
	v := reflect.New(f.Type().In(1).Elem()).Interface()
	if err := json.Unmarshal(text, v); err != nil {
		t.Fatal(err)
	}
	return v
}

// denied reports whether err is that of who may not use a session or a command.
func denied(err error) bool {
	if err == nil {
		return false
	}
	return turnstone.KindOf(err) == turnstone.KindNotFound &&
		!strings.Contains(err.Error(), "trace") ||
		strings.Contains(err.Error(), "only shared with your key") ||
		strings.Contains(err.Error(), "only the node's operator")
}

// TestRefused sends each command of the descriptor as each kind of client: only those for whom the
// command is get an answer, and the others learn nothing.
func TestRefused(t *testing.T) {
	s := newScene(t)
	all, known := methods(t), commands(s)
	playing := s.serve(player{s.x})
	for name := range known {
		if _, ok := all[name]; !ok {
			t.Errorf("%s is not in the descriptor", name)
		}
	}
	callers := []struct {
		name string
		owners.Caller
		may who
	}{{"other", s.other, anybody}, {"reader", s.reader, readers}, {"writer", s.writer, writers},
		{"mine", s.mine, owning}, {"operator", s.operator, operator}}
	for name, m := range all {
		k, ok := known[name]
		if !ok {
			t.Errorf("%s: say in this test whom the command is for", name)
			continue
		}
		if name == "Session.remove" {
			continue // below
		}
		for _, c := range callers {
			service := s.service
			if k.who <= c.may {
				service = playing // which needs no machine
			}
			text, err := call(t, s.connect(service, c.Caller), name, m, k.params)
			if k.who > c.may {
				if !denied(err) {
					t.Errorf("%s: %s: %v %q", name, c.name, err, text)
					continue
				}
				own := name == "Session.frozen" // whose receipt names the turn
				if c.may == anybody && !own && leaks(s, text+err.Error()+turnstone.HintOf(err)) {
					t.Errorf("%s: %s: the answer tells of the session: %q %v", name, c.name, text, err)
				}
				continue
			}
			// what a command about no session says of itself is not a denial
			about := k.who == readers || k.who == writers || k.who == owning
			if about && denied(err) && !strings.Contains(err.Error(), "none") &&
				!strings.Contains(err.Error(), "machine") {
				t.Errorf("%s: %s: %v", name, c.name, err)
			}
			if c.may == anybody && leaks(s, text) {
				t.Errorf("%s: %s: the answer tells of the session: %q", name, c.name, text)
			}
		}
	}
	remove := all["Session.remove"]
	for _, c := range callers[:3] {
		if _, err := call(t, s.connect(s.service, c.Caller), "Session.remove", remove,
			known["Session.remove"].params); !denied(err) {
			t.Errorf("remove: %s: %v", c.name, err)
		}
	}
	if _, err := call(t, s.connect(s.service, s.mine), "Session.remove", remove,
		known["Session.remove"].params); err != nil {
		t.Errorf("remove: %v", err)
	}
	if err := s.store.May(s.research.ID, s.mine, owners.Read); err == nil {
		t.Error("a removed session still has an owner")
	}
}

// leaks reports whether text has a part of the session research that a client cannot know.
func leaks(s *scene, text string) bool {
	for _, secret := range []string{string(s.research.ID), string(s.turns[0].ID), "changed",
		"output of turn"} {
		if strings.Contains(text, secret) {
			return true
		}
	}
	return false
}

// TestOtherSides uses a session of another client as the second reference of a command whose first
// is the client's own.
func TestOtherSides(t *testing.T) {
	s := newScene(t)
	ctx := context.Background()
	x := s.remote(s.service, s.mine)
	for name, err := range map[string]error{
		"diff to":   second(x.Diff(ctx, turnstone.DiffRequest{From: "research@1", To: "private@1"})),
		"diff from": second(x.Diff(ctx, turnstone.DiffRequest{From: "private@1", To: "research@1"})),
		"diff in": second(x.Diff(ctx, turnstone.DiffRequest{From: "research@1",
			To: string(s.private.ID) + "@main"})),
		"compare":      second(x.Compare(ctx, []string{"research@1", "private@1"})),
		"merge":        second(x.Merge(ctx, mergeRequest("private@1", "research@main"))),
		"merge into":   second(x.Merge(ctx, mergeRequest("research@side", "private@main"))),
		"replay range": second(x.ReplayRange(ctx, rangeRequest("private@1..private@1"), nil)),
	} {
		if turnstone.KindOf(err) != turnstone.KindNotFound {
			t.Errorf("%s: %v", name, err)
		}
	}
	all, err := x.Sessions(ctx)
	if err != nil || len(all) != 1 || all[0].ID != s.research.ID {
		t.Errorf("%+v %v", all, err)
	}
	if all, err := s.remote(s.service, s.other).Sessions(ctx); err != nil || len(all) != 0 {
		t.Errorf("%+v %v", all, err)
	}
	// a name that a hidden session has
	if _, err := x.Rename(ctx, "research", "private"); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Error(err)
	}
}

func second[T any](_ T, err error) error { return err }

// TestOperates asks a node whom it takes for its operator.
func TestOperates(t *testing.T) {
	s := newScene(t)
	for name, c := range map[string]owners.Caller{"other": s.other, "reader": s.reader,
		"mine": s.mine, "operator": s.operator} {
		got, err := s.remote(s.service, c).Operates(context.Background())
		if err != nil || got != (name == "operator") {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}
