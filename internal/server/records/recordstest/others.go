package recordstest

import (
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/server/records"
)

// jwt has the form of a token.
const jwt = "eyJhbGciOiJFZERTQSJ9.eyJzdWIiOiJtZSJ9.c2lnbmF0dXJl"

// testTokens: records of tokens are listed, and a token itself is refused and not repeated.
func testTokens(t *testing.T, f *fixture) {
	var want []records.Token
	for _, id := range []string{"t1", "t2", "t3"} {
		r := records.Token{ID: id, Tenant: "a", Name: "ci", Subject: "me", Key: "kid",
			Scopes: []string{"turns:run"}, Issued: f.Now(), Expires: f.Now().Add(time.Hour)}
		for _, a := range want {
			r.Ancestors = append(r.Ancestors, records.Ancestor{Issuer: "https://a b", Key: "kid",
				TokenID: a.ID})
		}
		if err := f.PutToken(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		want = append([]records.Token{r}, want...)
	}
	first, next, err := f.TokenPage(t.Context(), "a", records.Page{Size: 2})
	if err != nil || next == "" {
		t.Fatal(first, next, err)
	}
	rest, end, err := f.TokenPage(t.Context(), "a", records.Page{Size: 2, Token: next})
	if got := append(first, rest...); err != nil || end != "" || !reflect.DeepEqual(got, want) {
		t.Errorf("the tokens are %+v, %q: %v", got, end, err)
	}
	if list, _, err := f.TokenPage(t.Context(), "b", records.Page{}); err != nil || len(list) > 0 {
		t.Errorf("another tenant has %v: %v", list, err)
	}
	f.want(f.PutToken(t.Context(), want[0]), turnstone.KindInvalid)
	for _, spoil := range []func(r *records.Token){
		func(r *records.Token) { r.ID = jwt }, func(r *records.Token) { r.Key = jwt },
		func(r *records.Token) { r.ID = "" }, func(r *records.Token) { r.Expires = time.Time{} },
		func(r *records.Token) { r.Scopes = []string{"a\n"} },
		func(r *records.Token) { r.Ancestors = []records.Ancestor{{TokenID: "t"}} },
		func(r *records.Token) { r.Ancestors = []records.Ancestor{{Issuer: "i"}} },
		func(r *records.Token) { r.Ancestors = []records.Ancestor{{Issuer: "i", TokenID: jwt}} },
		func(r *records.Token) { r.Ancestors = make([]records.Ancestor, 17) },
	} {
		r := want[0]
		r.ID = "new"
		spoil(&r)
		err := f.PutToken(t.Context(), r)
		if turnstone.KindOf(err) != turnstone.KindInvalid || contains(err, jwt[:10]) {
			t.Errorf("%+v: %v", r, err)
		}
	}
}

func contains(err error, s string) bool {
	return err != nil && slices.Contains(splitAll(err.Error(), len(s)), s)
}

// splitAll returns all parts of s of n bytes.
func splitAll(s string, n int) (all []string) {
	for i := range max(len(s)-n+1, 0) {
		all = append(all, s[i:i+n])
	}
	return all
}

// testRevocations: they stay until the token has ended by the wall clock and by the server's own
// time; numbers grow.
func testRevocations(t *testing.T, f *fixture) {
	const years = 10 * 365 * 24 * time.Hour
	until := f.Now().Add(10 * 24 * time.Hour)
	token := records.Revocation{Issuer: "i", TokenID: "t", Until: until}
	key := records.Revocation{Issuer: "i", Key: "k"}
	longer := records.Revocation{Issuer: "i", TokenID: "u", Until: until}
	if err := f.Revoke(t.Context(), token, key, longer, token); err != nil {
		t.Fatal(err)
	}
	longer.Until = until.Add(time.Hour)
	shorter := longer
	shorter.Until = until.Add(-time.Hour)
	if err := f.Revoke(t.Context(), longer, shorter); err != nil {
		t.Fatal(err)
	}
	expect := func(when string, after time.Time, want ...records.Revocation) {
		t.Helper()
		if err := f.Prune(t.Context()); err != nil {
			t.Fatal(err)
		}
		got, err := f.Revocations(t.Context(), after)
		if err != nil || len(got) != len(want) {
			t.Errorf("%s there are %+v: %v; want %+v", when, got, err, want)
		}
		for _, r := range want {
			if !slices.ContainsFunc(got, func(x records.Revocation) bool {
				return x.Until.Equal(r.Until) && x.Issuer == r.Issuer && x.TokenID == r.TokenID &&
					x.Key == r.Key
			}) {
				t.Errorf("%s there are %+v; want %+v", when, got, r)
			}
		}
	}
	expect("at first", time.Time{}, key, token, longer)
	expect("after the end of one", until.Add(time.Minute), key, longer)
	f.Jump(years)
	expect("after the clock went ahead", time.Time{}, key, token, longer)
	f.Jump(-2 * years)
	f.Pass(20 * 24 * time.Hour)
	expect("after the clock went back", time.Time{}, key, token, longer)
	f.Jump(years)
	expect("after the end", time.Time{}, key)
	for _, bad := range []records.Revocation{{}, {Issuer: "i"}, {TokenID: "t"},
		{Issuer: "i", TokenID: "t", Key: "k"}, {Issuer: "i", TokenID: jwt}} {
		if err := f.Revoke(t.Context(), bad); turnstone.KindOf(err) != turnstone.KindInvalid ||
			contains(err, jwt[:10]) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	var mu sync.Mutex
	seen := map[uint64]bool{}
	var running sync.WaitGroup
	for range 4 {
		running.Go(func() {
			last := uint64(0)
			for range 5 {
				n, err := f.Number(t.Context())
				mu.Lock()
				if err != nil || n <= last || seen[n] {
					t.Errorf("number %d after %d: %v", n, last, err)
				}
				seen[n] = true
				mu.Unlock()
				last = n
			}
		})
	}
	running.Wait()
}

func testNodes(t *testing.T, f *fixture) {
	b := records.Node{Name: "b", State: records.NodeUp, Address: "unix:/x", Detail: []byte{1},
		Seen: f.Now()}
	a := records.Node{Name: "a", State: records.NodeDraining}
	for _, n := range []records.Node{a, b, a} {
		if err := f.PutNode(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	b.State, b.Detail = records.NodeLost, nil
	if err := f.PutNode(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if got, err := f.Nodes(t.Context()); err != nil ||
		!reflect.DeepEqual(got, []records.Node{a, b}) {
		t.Errorf("the nodes are %+v: %v", got, err)
	}
	for _, bad := range []records.Node{{Name: "a/b", State: records.NodeUp}, {Name: "a"}} {
		if err := f.PutNode(t.Context(), bad); turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// testUsage: spans count once, as far as they are between two times, also for many large machines.
func testUsage(t *testing.T, f *fixture) {
	day := 24 * time.Hour
	begin := f.Now()
	span := func(object string, part int, from, to time.Duration) records.Usage {
		return records.Usage{Tenant: "a", Kind: records.Sandbox, Object: object, Part: part,
			Node: "n", From: begin.Add(from), To: begin.Add(to), CPUs: 2, Memory: 512 << 20}
	}
	used := func(u records.Usage, session string, n int64) records.Usage {
		u.Session = session
		u.Used = turnstone.Used{CPU: turnstone.Millis(n) * turnstone.Millis(time.Second),
			Sent: turnstone.Bytes(2 * n), Received: turnstone.Bytes(3 * n)}
		return u
	}
	grown, other, turn := span("x", 0, 0, 2*day), span("z", 0, 0, day), span("y", 0, -day, day)
	other.Tenant, turn.Kind = "b", records.Turn
	for range 2 {
		if err := f.PutUsage(t.Context(), used(span("x", 0, 0, day), "", 50),
			used(grown, "s", 100), used(span("x", 0, 0, day), "", 40), span("x", 1, 2*day, 3*day), other,
			used(turn, "", 20)); err != nil {
			t.Fatal(err)
		}
	}
	for _, x := range []struct {
		since, until time.Duration
		want         records.Total
	}{
		{-2 * day, 10 * day, records.Total{Turns: 1, Sandboxes: 1, CPUSeconds: 5 * 2 * 86400,
			MemorySeconds: 5 * 512 * 86400, SandboxSeconds: 3 * 86400, TurnSeconds: 2 * 86400,
			Used: used(turn, "", 120).Used}},
		{0, 12 * time.Hour, records.Total{Sandboxes: 1, CPUSeconds: 2 * 2 * 43200,
			MemorySeconds: 2 * 512 * 43200, SandboxSeconds: 43200, TurnSeconds: 43200,
			Used: used(turn, "", 25+5).Used}},
		{5 * day, 6 * day, records.Total{}},
	} {
		got, err := f.Usage(t.Context(), "a", "", begin.Add(x.since), begin.Add(x.until))
		if err != nil || got != x.want {
			t.Errorf("from %v to %v: %+v: %v; want %+v", x.since, x.until, got, err, x.want)
		}
	}
	got, err := f.Usage(t.Context(), "a", "s", begin, begin.Add(10*day))
	if want := (records.Total{Sandboxes: 1, CPUSeconds: 2 * 2 * 86400, MemorySeconds: 2 * 512 * 86400,
		SandboxSeconds: 2 * 86400, Used: used(turn, "", 100).Used}); err != nil || got != want {
		t.Errorf("in the session: %+v: %v; want %+v", got, err, want)
	}
	stolen := grown
	stolen.Tenant = "b"
	f.want(f.PutUsage(t.Context(), stolen), turnstone.KindInvalid)
	back := span("w", 0, day, 0)
	f.want(f.PutUsage(t.Context(), back), turnstone.KindInvalid)
	var many []records.Usage
	for range 1000 {
		u := span(string(turnstone.NewSandboxID()), 0, 0, 365*day)
		u.Tenant, u.CPUs, u.Memory = "big", 64, 1<<40
		many = append(many, u)
	}
	if err := f.PutUsage(t.Context(), many...); err != nil {
		t.Fatal(err)
	}
	got, err = f.Usage(t.Context(), "big", "", begin, begin.Add(365*day))
	const seconds = 1000 * 365 * 86400
	if want := (records.Total{Sandboxes: 1000, CPUSeconds: 64 * seconds,
		MemorySeconds: 1 << 20 * seconds, SandboxSeconds: seconds}); err != nil || got != want {
		t.Errorf("many machines: %+v: %v; want %+v", got, err, want)
	}
}

// testGoneNode: what a lost node may have still keeps its record, and what a node has that was gone gets none.
func testGoneNode(t *testing.T, f *fixture) {
	ctx, day := t.Context(), 24*time.Hour
	put := func(s records.NodeState) {
		t.Helper()
		if err := f.PutNode(ctx, records.Node{Name: "n", State: s, Seen: f.Now()}); err != nil {
			t.Fatal(err)
		}
	}
	known := func(o records.Object) bool {
		t.Helper()
		if err := f.Prune(ctx); err != nil {
			t.Fatal(err)
		}
		_, err := f.Object(ctx, o.Tenant, o.Kind, o.ID)
		return err == nil
	}
	put(records.NodeLost)
	ended, session := f.make(object(records.Sandbox))[0], f.make(object(records.Session))[0]
	f.end(ended)
	f.end(session)
	f.Pass(30 * day)
	if !known(ended) || known(session) {
		t.Error("a lost node's sandbox has no record, or its session has one")
	}
	live, kept := f.make(object(records.Sandbox))[0], f.make(object(records.Session))[0]
	mark, err := f.Mark(ctx)
	if err != nil {
		t.Fatal(err)
	}
	out, err := f.Reconcile(ctx, records.Report{Node: "n", Mark: mark, Stays: func(o records.Object) bool {
		return o.Kind == records.Session
	}})
	if err != nil || len(out.Lost) != 1 || out.Lost[0].ID != live.ID || !known(kept) {
		t.Errorf("lost are %v: %v", out.Lost, err)
	}
	put(records.NodeGone)
	if f.Pass(40 * day); known(ended) || known(live) {
		t.Error("what ended has a record")
	}
	report := records.Report{Node: "n", Known: true}
	for _, o := range []records.Object{live, kept} {
		o.ID = object(o.Kind).ID
		o.State = records.First(o.Kind)
		report.Objects = append(report.Objects, o)
	}
	if out, err = f.Reconcile(ctx, report); err != nil || len(out.Surplus) != 1 || out.Surplus[0].Kind != records.Sandbox ||
		len(out.Adopted) != 1 || out.Adopted[0].Kind != records.Session {
		t.Errorf("of a node that was gone: %+v, %v", out, err)
	}
	if all, err := f.Nodes(ctx); err != nil || len(all) != 1 {
		t.Errorf("the nodes are %v: %v", all, err)
	}
	f.Jump(60 * day)
	known(kept)
	if all, err := f.Nodes(ctx); err != nil || len(all) != 0 {
		t.Errorf("the nodes are %v: %v", all, err)
	}
}

// testPrune: what has ended goes after its time, and nothing else.
func testPrune(t *testing.T, f *fixture) {
	const day = 24 * time.Hour
	live, ended := f.make(object(records.Sandbox))[0], f.make(object(records.Sandbox))[0]
	f.end(ended)
	token := records.Token{ID: "t", Tenant: "a", Key: "k", Issued: f.Now(),
		Expires: f.Now().Add(day)}
	span := records.Usage{Tenant: "a", Kind: records.Turn, Object: "x", Node: "n", From: f.Now(),
		To: f.Now().Add(time.Second), CPUs: 1} //wait: the end of a stored span
	if err := f.PutToken(t.Context(), token); err != nil {
		t.Fatal(err)
	}
	if err := f.PutUsage(t.Context(), span); err != nil {
		t.Fatal(err)
	}
	count := func(when string, objects, tokens, turns int) {
		t.Helper()
		if err := f.Prune(t.Context()); err != nil {
			t.Fatal(err)
		}
		o, _, err := f.List(t.Context(), "a", records.Filter{Kind: records.Sandbox}, records.Page{})
		k, _, err1 := f.TokenPage(t.Context(), "a", records.Page{})
		u, err2 := f.Usage(t.Context(), "a", "", span.From, span.To)
		if err != nil || err1 != nil || err2 != nil || len(o) != objects || len(k) != tokens ||
			u.Turns != turns {
			t.Errorf("%s there are %d objects, %d tokens, %d turns: %v, %v, %v", when, len(o),
				len(k), u.Turns, err, err1, err2)
		}
	}
	count("at first", 2, 1, 1)
	f.Jump(1000 * day)
	count("after the clock went ahead", 2, 1, 1)
	f.Jump(-1000 * day)
	f.Pass(7*day - time.Hour)
	count("just before", 2, 1, 1)
	f.Pass(2 * time.Hour)
	count("after the time of objects", 1, 1, 1)
	f.Pass(day)
	count("after the time of tokens", 1, 0, 1)
	f.Pass(500 * day)
	span.Object, span.From, span.To = "y", f.Now(), f.Now()
	if err := f.PutUsage(t.Context(), span); err != nil {
		t.Fatal(err)
	}
	span.From, span.To = f.Now().Add(-509*day), f.Now().Add(-500*day)
	count("after the time of usage", 1, 0, 0)
	f.get(live)
}

// testReadsAndWrites: readers see whole transactions while others write.
func testReadsAndWrites(t *testing.T, f *fixture) {
	var running sync.WaitGroup
	done := make(chan struct{})
	running.Go(func() {
		defer close(done)
		for range 30 {
			o, p := object(records.Sandbox), object(records.Sandbox)
			made, _, err := f.Create(t.Context(), nil, o, p)
			if err != nil {
				t.Error(err)
				return
			}
			for _, e := range []records.Event{records.Configured, records.CommandStarted,
				records.CommandsEnded, records.StopRequested} {
				if _, err := f.Change(t.Context(), "n", o.Kind, made[0].ID,
					records.Change{Event: e}); err != nil {
					t.Error(err)
				}
			}
		}
	})
	for range 3 {
		running.Go(func() {
			for {
				list, _, err := f.List(t.Context(), "a", records.Filter{Kind: records.Sandbox},
					records.Page{Size: 100})
				if err != nil || len(list)%2 != 0 {
					t.Errorf("a reader sees %d objects: %v", len(list), err)
				}
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	running.Wait()
}
