package recordstest

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/server/records"
)

// testTenants: what another tenant owns is not there, with the same words as what does not exist; a
// tenant that is disabled makes nothing.
func testTenants(t *testing.T, f *fixture) {
	o := object(records.Sandbox)
	o.Tenant, o.Owner, o.Labels, o.ManagedBy = "b", "somebody", map[string]string{"x/y": "<z>"}, "k/c"
	o.Session, o.Template, o.Detail = "s", "python", []byte{0, 1, 255}
	o.Expires = f.Now().Add(time.Hour)
	made := f.make(o)[0]
	if got := f.get(made); !reflect.DeepEqual(got, made) || !got.Created.Equal(f.Now()) ||
		got.Owner != o.Owner || !reflect.DeepEqual(got.Labels, o.Labels) {
		t.Errorf("got %+v, want %+v", got, made)
	}
	_, foreign := f.Object(t.Context(), "a", made.Kind, made.ID)
	_, missing := f.Object(t.Context(), "a", made.Kind, "sb_none")
	_, kind := f.Object(t.Context(), "b", records.Turn, made.ID)
	for _, err := range []error{foreign, missing, kind} {
		f.want(err, turnstone.KindNotFound)
	}
	if strings.Replace(foreign.Error(), made.ID, "sb_none", 1) != missing.Error() ||
		turnstone.HintOf(foreign) != turnstone.HintOf(missing) {
		t.Errorf("the errors tell objects of others: %v; %v", foreign, missing)
	}
	if list, _, err := f.List(t.Context(), "a", records.Filter{Kind: records.Sandbox},
		records.Page{}); err != nil || len(list) > 0 {
		t.Errorf("tenant a has %v: %v", list, err)
	}
	if err := f.PutTenant(t.Context(), records.Tenant{Name: "b", Disabled: true}); err != nil {
		t.Fatal(err)
	}
	again := object(records.Sandbox)
	again.Tenant = "b"
	_, _, err := f.Create(t.Context(), nil, again)
	f.want(err, turnstone.KindInvalid)
	f.want(f.PutTenant(t.Context(), records.Tenant{Name: "a/b"}), turnstone.KindInvalid)
	all, err := f.Tenants(t.Context())
	if want := []records.Tenant{{Name: "b", Disabled: true, Created: made.Created}}; err != nil ||
		!reflect.DeepEqual(all, want) {
		t.Errorf("the tenants are %+v: %v", all, err)
	}
}

// testPages: pages have each object once, from new to old, whatever is made meanwhile and wherever
// the clock jumps; a token is good for its own list only.
func testPages(t *testing.T, f *fixture) {
	var want []string
	for range 25 {
		want = append(want, f.make(object(records.Sandbox))[0].ID)
		f.Jump(-time.Hour)
	}
	slices.Reverse(want)
	filter := records.Filter{Kind: records.Sandbox, Node: "n"}
	var got, tokens []string
	p := records.Page{Size: 4}
	for {
		list, next, err := f.List(t.Context(), "a", filter, p)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, ids(list)...)
		f.make(object(records.Sandbox))
		if next == "" {
			break
		}
		p.Token = next
		tokens = append(tokens, next)
	}
	if !slices.Equal(got, want) {
		t.Errorf("the pages have %v, want %v", got, want)
	}
	list, _, err := f.List(t.Context(), "a", filter, records.Page{Token: tokens[1], Size: 100})
	if err != nil || !slices.Equal(ids(list), want[8:]) {
		t.Errorf("a page of another size has %v: %v", ids(list), err)
	}
	other := filter
	other.Node = "m"
	changed := []byte(tokens[0])
	changed[3] ^= 1
	for name, bad := range map[string]func() error{
		"another tenant": func() error {
			return errOf(f.List(t.Context(), "b", filter,
				records.Page{Token: tokens[0]}))
		},
		"another filter": func() error {
			return errOf(f.List(t.Context(), "a", other,
				records.Page{Token: tokens[0]}))
		},
		"a changed token": func() error {
			return errOf(f.List(t.Context(), "a", filter,
				records.Page{Token: string(changed)}))
		},
		"a short token": func() error {
			return errOf(f.List(t.Context(), "a", filter,
				records.Page{Token: tokens[0][:8]}))
		},
		"no token at all": func() error {
			return errOf(f.List(t.Context(), "a", filter,
				records.Page{Token: "!"}))
		},
		"the list of tokens": func() error {
			_, _, err := f.TokenPage(t.Context(), "a", records.Page{Token: tokens[0]})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) { f.want(bad(), turnstone.KindInvalid) })
	}
	for _, size := range []int{-1, 101} {
		_, _, err := f.List(t.Context(), "a", filter, records.Page{Size: size})
		if turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Errorf("a page of %d: %v", size, err)
		}
	}
}

func errOf(_ []records.Object, _ string, err error) error { return err }

// testFilters: each field of a filter selects.
func testFilters(t *testing.T, f *fixture) {
	var all []records.Object
	for i := range 6 {
		o := object(records.Sandbox)
		o.Name, o.Session, o.Template = fmt.Sprint("box-", i), fmt.Sprint("s", i%2), "python"
		o.Labels = map[string]string{"env": fmt.Sprint(i % 3), "team.x/y": "é<&>"}
		if i == 5 {
			o.Name, o.Template, o.Node, o.Labels = "", "node", "m", nil
		} else if i < 3 {
			o.ManagedBy = fmt.Sprintf("k/c/n%d/u%d", i/2, i)
		}
		all = append(all, f.make(o)[0])
		f.Pass(time.Hour)
	}
	f.make(object(records.Turn))
	f.change(all[0], records.Change{Event: records.Configured})
	f.end(all[1])
	born := func(i int) time.Time { return all[i].Created }
	for name, test := range map[string]struct {
		filter records.Filter
		want   []int
	}{
		"all": {records.Filter{}, []int{0, 1, 2, 3, 4, 5}},
		"state": {records.Filter{States: []records.State{records.Ready, records.Failed}},
			[]int{0, 1}},
		"IDs":       {records.Filter{IDs: []string{all[2].ID, "sb_x", all[4].ID}}, []int{2, 4}},
		"name":      {records.Filter{Name: "box-3"}, []int{3}},
		"prefix":    {records.Filter{Prefix: "box-"}, []int{0, 1, 2, 3, 4}},
		"no prefix": {records.Filter{Prefix: "%"}, nil},
		"named":     {records.Filter{Named: true}, []int{0, 1, 2, 3, 4}},
		"session":   {records.Filter{Session: "s1"}, []int{1, 3, 5}},
		"template":  {records.Filter{Template: "node"}, []int{5}},
		"node":      {records.Filter{Node: "m"}, []int{5}},
		"label":     {records.Filter{Labels: map[string]string{"env": "1"}}, []int{1, 4}},
		"labels": {records.Filter{Labels: map[string]string{"env": "1", "team.x/y": "é<&>"}},
			[]int{1, 4}},
		"managed":     {records.Filter{ManagedBy: "k/c/n0/u1"}, []int{1}},
		"managed too": {records.Filter{ManagedBy: "k/c/n0/", Labels: map[string]string{"env": "1"}}, []int{1}},
		"all managed": {records.Filter{ManagedBy: "k/"}, []int{0, 1, 2}},
		"a beginning": {records.Filter{ManagedBy: "k/c/n0"}, nil},
		"other case":  {records.Filter{ManagedBy: "K/"}, nil},
		"no label":    {records.Filter{Labels: map[string]string{"other": ""}}, nil},
		"time":        {records.Filter{Since: born(1), Until: born(3)}, []int{1, 2}},
		"several":     {records.Filter{Session: "s0", Since: born(1)}, []int{2, 4}},
	} {
		t.Run(name, func(t *testing.T) {
			test.filter.Kind = records.Sandbox
			list, _, err := f.List(t.Context(), "a", test.filter, records.Page{})
			want := []string{}
			for _, i := range slices.Backward(test.want) {
				want = append(want, all[i].ID)
			}
			if err != nil || !slices.Equal(ids(list), want) {
				t.Errorf("got %v, want %v: %v", ids(list), want, err)
			}
		})
	}
	for _, bad := range []records.Filter{{}, {Kind: records.Turn, IDs: make([]string, 101)},
		{Kind: records.Turn, Labels: map[string]string{`"`: ""}}} {
		_, _, err := f.List(t.Context(), "a", bad, records.Page{})
		if turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// testReconcile: after it the records are what the node has, except of what is newer than its list.
func testReconcile(t *testing.T, f *fixture) {
	sandbox := func() records.Object { return f.make(object(records.Sandbox))[0] }
	same, runs, gone, back, ended := sandbox(), sandbox(), sandbox(), sandbox(), sandbox()
	pending, elsewhere := sandbox(), object(records.Sandbox)
	elsewhere.Node = "m"
	f.make(elsewhere)
	ticket, turn := f.make(object(records.Turn))[0], f.make(object(records.Turn))[0]
	f.change(turn, records.Change{Event: records.Begun})
	f.change(same, records.Change{Event: records.Configured})
	f.change(back, records.Change{Event: records.Configured})
	f.end(ended)
	mark, err := f.Mark(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	later := sandbox()
	seen := func(o records.Object, s records.State) records.Object {
		return records.Object{Kind: o.Kind, ID: o.ID, State: s}
	}
	unknown := object(records.Sandbox)
	unknown.State, unknown.Name, unknown.Tenant, unknown.ManagedBy = records.Running, "adopted", "c", "k/c"
	nobody := records.Object{Kind: records.Sandbox, ID: "sb_nobody", State: records.Ready}
	paused := seen(runs, records.Running)
	paused.Paused, paused.Detail, paused.ManagedBy = true, []byte("d"), "k/c"
	report := records.Report{Node: "n", Mark: mark, Pending: []string{pending.ID},
		Objects: []records.Object{
			seen(same, records.Ready), paused, seen(back, records.Creating),
			seen(ended, records.Ready), seen(elsewhere, records.Ready), unknown, nobody,
			{Kind: records.Sandbox, ID: "sb_over", Tenant: "a", State: records.Stopped},
		}}
	out, err := f.Reconcile(t.Context(), report)
	if err != nil {
		t.Fatal(err)
	}
	for name, x := range map[string]struct {
		got  []records.Object
		want []string
	}{
		"changed": {out.Changed, []string{runs.ID}},
		"lost":    {out.Lost, []string{gone.ID, ticket.ID, turn.ID}},
		"adopted": {out.Adopted, []string{unknown.ID}},
		"surplus": {out.Surplus, []string{ended.ID, elsewhere.ID, nobody.ID}},
	} {
		if !slices.Equal(ids(x.got), x.want) {
			t.Errorf("%s are %v, want %v", name, ids(x.got), x.want)
		}
	}
	for _, x := range []struct {
		o     records.Object
		state records.State
	}{{same, records.Ready}, {runs, records.Running}, {gone, records.Failed},
		{back, records.Ready}, {ended, records.Failed}, {pending, records.Creating},
		{elsewhere, records.Creating}, {later, records.Creating}, {ticket, records.Expired},
		{turn, records.Done}, {unknown, records.Running}} {
		if got := f.get(x.o); got.State != x.state {
			t.Errorf("%s is %s, want %s", x.o.ID, got.State, x.state)
		}
	}
	if got := f.get(gone); got.Reason != "the node lost it" || got.Ended.IsZero() {
		t.Errorf("the lost sandbox is %+v", got)
	}
	if got := f.get(turn); got.Result != records.ResultError {
		t.Errorf("the lost turn is %+v", got)
	}
	if got := f.get(runs); got.ManagedBy != "" {
		t.Errorf("a node has changed what manages a sandbox: %+v", got)
	}
	if got := f.get(runs); !got.Paused || string(got.Detail) != "d" {
		t.Errorf("the sandbox that runs is %+v", got)
	}
	if got := f.get(unknown); got.Name != "adopted" || got.Node != "n" || got.Tenant != "c" ||
		got.ManagedBy != "k/c" {
		t.Errorf("the adopted sandbox is %+v", got)
	}
	if again, err := f.Reconcile(t.Context(), report); err != nil || len(again.Changed)+
		len(again.Lost)+len(again.Adopted) > 0 || len(again.Surplus) != 3 {
		t.Errorf("the same list again does %+v: %v", again, err)
	}
	bad := report
	bad.Objects = []records.Object{{Kind: records.Turn, ID: "x", State: records.Ready}}
	if _, err = f.Reconcile(t.Context(), bad); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Errorf("a turn that is ready: %v", err)
	}
}
