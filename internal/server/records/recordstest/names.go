package recordstest

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/server/records"
)

// testNames: an object is found by its name until it ends, by its tenant only.
func testNames(t *testing.T, f *fixture) {
	o := object(records.Session)
	o.Name = "research"
	made := f.make(o)[0]
	got, err := f.Named(t.Context(), made.Tenant, records.Session, "research")
	if err != nil || !reflect.DeepEqual(got, made) {
		t.Errorf("%+v %v", got, err)
	}
	for _, x := range []struct {
		tenant, name string
		kind         records.Kind
	}{{"b", "research", records.Session}, {made.Tenant, "", records.Session},
		{made.Tenant, "research", records.Turn}, {made.Tenant, "resear", records.Session}} {
		_, err := f.Named(t.Context(), x.tenant, x.kind, x.name)
		f.want(err, turnstone.KindNotFound)
	}
	f.change(made, records.Change{Event: records.Deleted})
	_, err = f.Named(t.Context(), made.Tenant, records.Session, "research")
	f.want(err, turnstone.KindNotFound)
}

// testUsed: a key says what it was used for, without a creation.
func testUsed(t *testing.T, f *fixture) {
	if all, err := f.Used(t.Context(), *key("k", "x")); err != nil || len(all) != 0 {
		t.Errorf("an unused key has %v: %v", all, err)
	}
	made, _, err := f.Create(t.Context(), key("k", "x"), object(records.Sandbox),
		object(records.Sandbox))
	if err != nil {
		t.Fatal(err)
	}
	all, err := f.Used(t.Context(), *key("k", "x"))
	if err != nil || !reflect.DeepEqual(all, made) {
		t.Errorf("%v: %v, want %v", all, err, made)
	}
	_, err = f.Used(t.Context(), *key("k", "y"))
	f.want(err, turnstone.KindInvalid)
	other := key("k", "y")
	other.Tenant = "b"
	if all, err := f.Used(t.Context(), *other); err != nil || len(all) != 0 {
		t.Errorf("another tenant's key has %v: %v", all, err)
	}
}

// testReturns: a session that the node had lost and has again is live again; a sandbox, and a
// session that was deleted, are surplus.
func testReturns(t *testing.T, f *fixture) {
	named := func(k records.Kind, name string) records.Object {
		o := object(k)
		o.Name = name
		return f.make(o)[0]
	}
	lost, other := named(records.Session, "one"), named(records.Session, "two")
	box, deleted := named(records.Sandbox, "box"), named(records.Session, "three")
	f.change(deleted, records.Change{Event: records.Deleted})
	mark, err := f.Mark(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out, err := f.Reconcile(t.Context(), records.Report{Node: "n", Mark: mark})
	if err != nil || len(out.Lost) != 3 {
		t.Fatalf("%+v %v", out, err)
	}
	named(records.Session, "two") // the name is given away
	back := func(o records.Object) records.Object {
		o.State, o.Detail = records.First(o.Kind), []byte("new")
		if o.Kind == records.Sandbox {
			o.State = records.Ready
		}
		return o
	}
	foreign := back(lost)
	foreign.Tenant = "b"
	out, err = f.Reconcile(t.Context(), records.Report{Node: "n", Objects: []records.Object{foreign,
		back(lost), back(other), back(box), back(deleted)}})
	if err != nil || !slices.Equal(ids(out.Adopted), []string{lost.ID, other.ID}) ||
		!slices.Equal(ids(out.Surplus), []string{lost.ID, box.ID, deleted.ID}) {
		t.Fatalf("%+v %v", out, err)
	}
	if o := f.get(lost); o.State != records.Kept || o.Name != "one" || o.Reason != "" ||
		!o.Ended.IsZero() || string(o.Detail) != "new" {
		t.Errorf("%+v", o)
	}
	if o := f.get(other); o.State != records.Kept || o.Name != "" {
		t.Errorf("%+v", o)
	}
	// What is live again is not pruned.
	f.Pass(1000 * time.Hour)
	if err := f.Prune(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.get(lost)
}

// testRenames: a node's report moves a turn to its session, and renames a session if the name is
// free.
func testRenames(t *testing.T, f *fixture) {
	o, p := object(records.Session), object(records.Session)
	o.Name, p.Name = "one", "two"
	one := f.make(o, p)[0]
	turn := f.make(object(records.Turn))[0]
	report := func(name string) {
		_, err := f.Reconcile(t.Context(), records.Report{Node: "n", Objects: []records.Object{
			{Kind: records.Session, ID: one.ID, Name: name, State: records.Kept},
			{Kind: records.Turn, ID: turn.ID, Session: one.ID, State: records.Running}}})
		if err != nil {
			t.Fatal(err)
		}
	}
	report("two")
	if got := f.get(one); got.Name != "one" {
		t.Errorf("a taken name was given: %+v", got)
	}
	report("three")
	if got := f.get(one); got.Name != "three" {
		t.Errorf("%+v", got)
	}
	if got := f.get(turn); got.Session != one.ID || got.State != records.Running {
		t.Errorf("%+v", got)
	}
	// A report that left the node before the session had its name does not take the ID away.
	if _, err := f.Reconcile(t.Context(), records.Report{Node: "n", Objects: []records.Object{
		{Kind: records.Turn, ID: turn.ID, Session: "one", State: records.Running,
			Detail: []byte("more")}}}); err != nil {
		t.Fatal(err)
	}
	if got := f.get(turn); got.Session != one.ID || string(got.Detail) != "more" {
		t.Errorf("%+v", got)
	}
	all, _, err := f.List(t.Context(), turn.Tenant, records.Filter{Kind: records.Turn,
		Sessions: []string{"nothing", one.ID}}, records.Page{})
	if err != nil || len(all) != 1 {
		t.Errorf("%v %v", all, err)
	}
}

// testTokensOfAll: a token is found by its ID, and the page of no tenant has the tokens of all.
func testTokensOfAll(t *testing.T, f *fixture) {
	for i, tenant := range []string{"a", "b", "b"} {
		err := f.PutToken(t.Context(), records.Token{ID: fmt.Sprint("tk_", i), Tenant: tenant,
			Name: "n", Subject: "s", Key: "k", Scopes: []string{"turns:run"},
			Issued: f.Now(), Expires: f.Now().Add(time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
	}
	got, err := f.Token(t.Context(), "tk_1")
	if err != nil || got.Tenant != "b" || !slices.Equal(got.Scopes, []string{"turns:run"}) {
		t.Errorf("%+v %v", got, err)
	}
	_, err = f.Token(t.Context(), "tk_9")
	f.want(err, turnstone.KindNotFound)
	var seen []string
	for p, pages := (records.Page{Size: 2}), 0; pages == 0 || p.Token != ""; pages++ {
		var all []records.Token
		if all, p.Token, err = f.TokenPage(t.Context(), "", p); err != nil {
			t.Fatal(err)
		}
		for _, x := range all {
			seen = append(seen, x.ID)
		}
	}
	if !slices.Equal(seen, []string{"tk_2", "tk_1", "tk_0"}) {
		t.Errorf("%v", seen)
	}
}
