package recordstest

import (
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/server/records"
)

// key returns an idempotency key of tenant "a".
func key(name, request string) *records.Key {
	return &records.Key{Tenant: "a", Method: "CreateSandbox", Key: name,
		Request: turnstone.DigestBytes([]byte(request))}
}

// testKeys: the same key and request answer the same objects, and another request is invalid.
func testKeys(t *testing.T, f *fixture) {
	first, old, err := f.Create(t.Context(), key("k", "x"), object(records.Sandbox),
		object(records.Sandbox))
	if err != nil || old || len(first) != 2 {
		t.Fatal(first, old, err)
	}
	for range 2 {
		again, old, err := f.Create(t.Context(), key("k", "x"), object(records.Sandbox),
			object(records.Sandbox))
		if err != nil || !old || !reflect.DeepEqual(again, first) {
			t.Fatalf("the same request answers %+v, old %v: %v; want %+v", again, old, err, first)
		}
	}
	_, _, err = f.Create(t.Context(), key("k", "y"), object(records.Sandbox))
	f.want(err, turnstone.KindInvalid)

	f.change(first[0], records.Change{Event: records.Configured})
	again, _, err := f.Create(t.Context(), key("k", "x"), object(records.Sandbox))
	if err != nil || again[0].State != records.Ready {
		t.Errorf("the answer is not of now: %+v: %v", again, err)
	}
	// The tenant and the method belong to the key.
	other := key("k", "y")
	other.Method = "StartTurn"
	tenant := key("k", "y")
	tenant.Tenant = "b"
	o := object(records.Sandbox)
	o.Tenant = "b"
	for i, made := range []func() ([]records.Object, bool, error){
		func() ([]records.Object, bool, error) {
			return f.Create(t.Context(), other, object(records.Turn))
		},
		func() ([]records.Object, bool, error) { return f.Create(t.Context(), tenant, o) },
	} {
		if _, old, err := made(); old || err != nil {
			t.Errorf("%d: old %v: %v", i, old, err)
		}
	}
	_, _, err = f.Create(t.Context(), tenant, object(records.Sandbox))
	if turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Errorf("a key of another tenant than the object: %v", err)
	}
}

// testKeyLife: a key stays while one of its objects lives, and 24 hours of the server's time after
// that, wherever the wall clock jumps.
func testKeyLife(t *testing.T, f *fixture) {
	const years = 10 * 365 * 24 * time.Hour
	first, _, err := f.Create(t.Context(), key("k", "x"), object(records.Sandbox),
		object(records.Sandbox))
	if err != nil {
		t.Fatal(err)
	}
	same := func(when string) {
		t.Helper()
		if err := f.Prune(t.Context()); err != nil {
			t.Fatal(err)
		}
		again, old, err := f.Create(t.Context(), key("k", "x"), object(records.Sandbox))
		if err != nil || !old || !reflect.DeepEqual(ids(again), ids(first)) {
			t.Fatalf("%s the key answers %v, old %v: %v", when, ids(again), old, err)
		}
	}
	f.Pass(30 * 24 * time.Hour)
	same("while the objects live")
	f.end(first[0])
	f.Pass(30 * 24 * time.Hour)
	same("while one object lives")
	f.Jump(years)
	f.end(first[1])
	f.Jump(-2 * years)
	same("after the clock went back")
	f.Pass(records.KeyLife - time.Minute)
	f.Jump(3 * years)
	same("after the clock went ahead")
	f.Pass(2 * time.Minute)
	f.Jump(-3 * years)
	again, old, err := f.Create(t.Context(), key("k", "another"), object(records.Sandbox))
	if err != nil || old || len(again) != 1 {
		t.Fatalf("after its life the key answers %v, old %v: %v", ids(again), old, err)
	}
	if err := f.Prune(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, old, err = f.Create(t.Context(), key("k", "another"), object(records.Sandbox))
	if err != nil || !old {
		t.Errorf("the new use of the key: old %v: %v", old, err)
	}
}

// testKeyRaces: of many calls with the same key one makes the object, and all that made the same
// request answer it.
func testKeyRaces(t *testing.T, f *fixture) {
	const calls, keys = 8, 6
	var mu sync.Mutex
	made, answers := map[string]int{}, map[string]map[string]bool{}
	var running sync.WaitGroup
	for k := range keys {
		for c := range calls {
			running.Go(func() {
				name := fmt.Sprint("k", k)
				got, old, err := f.Create(t.Context(), key(name, "x"), object(records.Turn))
				if c%4 == 3 {
					_, _, bad := f.Create(t.Context(), key(name, "y"), object(records.Turn))
					if turnstone.KindOf(bad) != turnstone.KindInvalid {
						t.Errorf("another request: %v", bad)
					}
				}
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				if !old {
					made[name]++
				}
				if answers[name] == nil {
					answers[name] = map[string]bool{}
				}
				answers[name][got[0].ID] = true
			})
		}
	}
	running.Wait()
	for name, n := range made {
		if n != 1 || len(answers[name]) != 1 {
			t.Errorf("%s made %d objects and answered %v", name, n, answers[name])
		}
	}
	all, _, err := f.List(t.Context(), "a", records.Filter{Kind: records.Turn}, records.Page{})
	if err != nil || len(all) != keys || len(made) != keys {
		t.Errorf("there are %d objects of %d keys: %v", len(all), len(made), err)
	}
}

// testAtomic: a call that fails leaves neither objects nor a key.
func testAtomic(t *testing.T, f *fixture) {
	there := f.make(object(records.Sandbox))[0]
	fresh := object(records.Sandbox)
	_, _, err := f.Create(t.Context(), key("k", "x"), fresh, there)
	f.want(err, turnstone.KindInvalid)
	_, err = f.Object(t.Context(), "a", fresh.Kind, fresh.ID)
	f.want(err, turnstone.KindNotFound)
	if _, old, err := f.Create(t.Context(), key("k", "y"), fresh); err != nil || old {
		t.Errorf("the key of a failed call: old %v: %v", old, err)
	}
	named := object(records.Sandbox)
	named.Name = "n"
	f.make(named)
	second := object(records.Sandbox)
	second.Name = "n"
	_, _, err = f.Create(t.Context(), nil, second)
	f.want(err, turnstone.KindInvalid)
	f.end(named)
	f.make(second) // the name is free after the end
}

// testBadObjects: what cannot be stored is invalid.
func testBadObjects(t *testing.T, f *fixture) {
	for name, spoil := range map[string]func(o *records.Object){
		"kind":     func(o *records.Object) { o.Kind = "thing" },
		"ID":       func(o *records.Object) { o.ID = "a b" },
		"no ID":    func(o *records.Object) { o.ID = "" },
		"no node":  func(o *records.Object) { o.Node = "" },
		"tenant":   func(o *records.Object) { o.Tenant = "../a" },
		"name":     func(o *records.Object) { o.Name = "a\nb" },
		"owner":    func(o *records.Object) { o.Owner = strings.Repeat("a", 1000) },
		"UTF-8":    func(o *records.Object) { o.Session = "\xff" },
		"label":    func(o *records.Object) { o.Labels = map[string]string{`a"b`: "x"} },
		"value":    func(o *records.Object) { o.Labels = map[string]string{"a": "x\x00"} },
		"detail":   func(o *records.Object) { o.Detail = make([]byte, records.MaxDetail+1) },
		"far time": func(o *records.Object) { o.Expires = o.Expires.AddDate(3000, 0, 0) },
	} {
		o := object(records.Sandbox)
		spoil(&o)
		if _, _, err := f.Create(t.Context(), nil, o); turnstone.KindOf(err) !=
			turnstone.KindInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, _, err := f.Create(t.Context(), nil); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Errorf("no object: %v", err)
	}
	bad := key("", "x")
	if _, _, err := f.Create(t.Context(), bad, object(records.Turn)); turnstone.KindOf(err) !=
		turnstone.KindInvalid {
		t.Errorf("an empty key: %v", err)
	}
}
