package lowerdir

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
	"turnstone.dev/turnstone/substrate"
)

// A chain is a history that grows.
type chain struct {
	t      *testing.T
	m      *treetest.Store
	states []*model
	items  []Item // oldest first
	walked int
}

func newChain(t *testing.T) *chain { return &chain{t: t, m: treetest.NewStore()} }

// add appends a turn that leaves state.
func (c *chain) add(state *model) {
	n := len(c.items) + 1
	key := turnstone.DigestBytes(fmt.Appendf(nil, "turn %d of %s", n, c.t.Name()))
	c.items = append(c.items, Item{Key: key, Number: n, Tree: state.put(c.t, c.m),
		Line: fmt.Sprintf("turn %d", n), Context: contextOf(n)})
	c.states = append(c.states, state)
}

// history yields the turns up to n, newest first.
func (c *chain) history(n int) History {
	return func(yield func(Item, error) bool) {
		for i := n - 1; i >= 0; i-- {
			c.walked++
			if !yield(c.items[i], nil) {
				return
			}
		}
	}
}

// check compares a stack with the state that turn n left.
func (c *chain) check(paths []string, n int) {
	c.t.Helper()
	if len(paths) > substrate.MaxLayers {
		c.t.Errorf("%d images", len(paths))
	}
	var files, contexts []*layerFile
	for i, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			c.t.Fatal(err)
		}
		files = append([]*layerFile{readLayer(c.t, i, f, "fs")}, files...)
		contexts = append([]*layerFile{readLayer(c.t, i, f, "context")}, contexts...)
		_ = f.Close()
	}
	compare(c.t, mergeLayers(files, map[[2]int64]*model{}), c.states[n-1])
	context := mergeLayers(contexts, map[[2]int64]*model{})
	turns := context.children["turns"].children
	if len(turns) != n {
		c.t.Errorf("/context has %d turns of %d", len(turns), n)
	}
	for i := 1; i <= n; i++ {
		if got := turns[fmt.Sprint(i)].children["receipt.md"].content; got != fmt.Sprintf(
			"receipt %d\n", i) {
			c.t.Errorf("turn %d: %q", i, got)
		}
	}
	index := context.children["index.md"].content
	if !strings.Contains(index, fmt.Sprintf("- turn %d\n", n)) ||
		strings.Count(index, "\n- turn ") != min(n, indexTurns) {
		c.t.Errorf("index of %d turns: %.300q", n, index)
	}
}

func (c *chain) stack(cache *Cache, n int) []string {
	c.t.Helper()
	paths, release, err := cache.Stack(c.t.Context(), turnstone.TreeRef{}, c.history(n))
	if err != nil {
		c.t.Fatalf("%v (%s)", err, turnstone.HintOf(err))
	}
	defer release()
	c.check(paths, n)
	return paths
}

func TestStackOfALongHistory(t *testing.T) {
	for name, background := range map[string]bool{"foreground": false, "background": true} {
		t.Run(name, func(t *testing.T) {
			c := newChain(t)
			cache := New(filepath.Join(t.TempDir(), "images"), c.m, Options{})
			r := rand.New(rand.NewPCG(3, 4))
			now := dirModel(0o755, nil)
			for i := range 130 {
				now = now.clone(map[*model]*model{})
				for range r.IntN(4) {
					mutate(r, now)
				}
				now.children[fmt.Sprint("turn", i)] = fileModel(strings.Repeat("t", 5000))
				c.add(now)
				if background {
					if err := cache.Flatten(t.Context(), turnstone.TreeRef{},
						c.history(i+1)); err != nil {
						t.Fatal(err)
					}
				}
				if i%7 == 0 || i > 120 {
					c.stack(cache, i+1)
				}
			}
			// A known stack costs reading the newest turn.
			c.walked = 0
			before := c.m.Opens()
			paths, release, err := cache.Stack(t.Context(), turnstone.TreeRef{}, c.history(130))
			if err != nil || c.walked != 1 || c.m.Opens() != before {
				t.Errorf("%v; %d turns walked, %d files read", err, c.walked, c.m.Opens())
			}
			release()
			if background && len(paths) > substrate.MaxLayers-1 {
				t.Errorf("no room is left for one more on %d images", len(paths))
			}
			// A fork from an older turn.
			c.stack(cache, 71)
			if paths, release, err := cache.Stack(t.Context(), turnstone.TreeRef{},
				c.history(0)); len(paths) != 0 || err != nil {
				t.Errorf("of no turns: %q, %v", paths, err)
			} else {
				release()
			}
		})
	}
}

// The cost per byte of keeping the stack short grows slower than the history.
func TestRentOrBuy(t *testing.T) {
	for _, background := range []bool{true, false} {
		t.Run(fmt.Sprintf("background %v", background), func(t *testing.T) {
			testRentOrBuy(t, background)
		})
	}
}

func testRentOrBuy(t *testing.T, background bool) {
	for n, most := range map[int]float64{20: 3, 100: 5, 500: 8, 2000: 12} {
		for name, size := range map[string]func(i int) int64{
			"equal": func(int) int64 { return 20 }, "random": func(i int) int64 {
				return int64(i*7919%100 + 1)
			},
			"large first": func(i int) int64 { return max(1, 1000-int64(i)*1000) },
		} {
			var segments []segment
			var given, written int64
			for i := range n {
				segments = append(segments, segment{Turns: 1, Bytes: size(i)})
				given += size(i)
				total := int64(0)
				for _, s := range segments {
					total += s.Bytes
				}
				segments = shorten(segments, substrate.MaxLayers, background)
				top := &segments[len(segments)-1]
				below := int64(0)
				for _, s := range segments[:len(segments)-1] {
					below += s.Bytes
				}
				top.Bytes = total - below
				written += top.Bytes
				for j := range segments[:len(segments)-1] {
					segments[j].Rent += top.Bytes
				}
				if len(segments) > substrate.MaxLayers {
					t.Fatalf("%d segments", len(segments))
				}
			}
			if ratio := float64(written) / float64(given); ratio > most {
				t.Errorf("%s, %d turns: each byte is written %.1f times", name, n, ratio)
			}
		}
	}
}

func smallChain(t *testing.T, n int) *chain {
	c := newChain(t)
	now := dirModel(0o755, nil)
	for i := range n {
		now = now.clone(map[*model]*model{})
		now.children[fmt.Sprint("f", i)] = fileModel(strings.Repeat(fmt.Sprint(i), 4000))
		c.add(now)
	}
	return c
}

// For any damage to the files, a stack is correct, or is made again.
func TestDamagedCache(t *testing.T) {
	c := smallChain(t, 5)
	for name, damage := range map[string]func(dir string, paths []string) error{
		"an image is gone":    func(_ string, p []string) error { return os.Remove(p[1]) },
		"the lowest is gone":  func(_ string, p []string) error { return os.Remove(p[0]) },
		"an image is cut":     func(_ string, p []string) error { return os.Truncate(p[2], 4096) },
		"an image is written": func(_ string, p []string) error { return overwriteAt(p[2], 1030) },
		"an image is a folder": func(_ string, p []string) error {
			return errors.Join(os.Remove(p[2]), os.Mkdir(p[2], 0o700))
		},
		"no sidecar": func(_ string, p []string) error {
			return os.Remove(p[4] + ".json")
		},
		"bad sidecar": func(_ string, p []string) error {
			return os.WriteFile(p[4]+".json", []byte("{"), 0o600)
		},
		"no plans": func(dir string, _ []string) error {
			return os.RemoveAll(filepath.Join(dir, "plans"))
		},
		"bad plans": func(dir string, _ []string) error {
			all, _ := filepath.Glob(filepath.Join(dir, "plans", "*"))
			for _, p := range all {
				if err := os.WriteFile(p,
					[]byte(`{"format":1,"segments":[{"image":"../../x","turns":1}]}`),
					0o600); err != nil {
					return err
				}
			}
			return nil
		},
		"another's plan": func(dir string, _ []string) error {
			all, _ := filepath.Glob(filepath.Join(dir, "plans", "*"))
			b, err := os.ReadFile(all[0])
			for _, p := range all[1:] {
				err = errors.Join(err, os.WriteFile(p, b, 0o600))
			}
			return err
		},
		"nothing": func(dir string, _ []string) error { return os.RemoveAll(dir) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "images")
			cache := New(dir, c.m, Options{})
			var paths []string
			for n := range 5 {
				paths = c.stack(cache, n+1)
			}
			if len(paths) != 5 {
				t.Fatalf("%q", paths)
			}
			if err := damage(dir, paths); err != nil {
				t.Fatal(err)
			}
			if name == "an image is a folder" {
				defer func() { _ = os.Remove(paths[2]) }()
				if _, _, err := cache.Stack(t.Context(), turnstone.TreeRef{},
					c.history(5)); turnstone.KindOf(err) != turnstone.KindUnavailable {
					// The image could not be renamed; no wrong stack was returned.
					c.stack(cache, 5)
				}
				return
			}
			c.stack(cache, 5)
			c.stack(cache, 3)
		})
	}
}

func overwriteAt(path string, off int64) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt([]byte("x"), off)
	return errors.Join(err, f.Close())
}

func TestEvict(t *testing.T) {
	c := smallChain(t, 6)
	dir := filepath.Join(t.TempDir(), "images")
	cache := New(dir, c.m, Options{Budget: 1})
	paths, release, err := cache.Stack(t.Context(), turnstone.TreeRef{}, c.history(3))
	if err != nil {
		t.Fatal(err)
	}
	other, releaseOther, err := cache.Stack(t.Context(), turnstone.TreeRef{}, c.history(6))
	if err != nil {
		t.Fatal(err)
	}
	c.check(paths, 3) // in use: still exists
	c.check(other, 6)
	release()
	releaseOther()
	stray := filepath.Join(dir, "images", tempPrefix+"stray")
	if err := os.WriteFile(stray, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(stray, old, old); err != nil {
		t.Fatal(err)
	}
	cache.evict()
	left, _ := filepath.Glob(filepath.Join(dir, "images", "*"))
	hidden, _ := filepath.Glob(filepath.Join(dir, "images", ".*"))
	if len(left)+len(hidden) != 0 {
		t.Errorf("left: %q %q", left, hidden)
	}
	c.stack(cache, 6) // made again

	// With room for all images none is removed; the most recently used image stays longest.
	roomy := New(filepath.Join(t.TempDir(), "images"), c.m, Options{})
	for n := range 6 {
		paths = c.stack(roomy, n+1)
	}
	for i, p := range paths {
		when := time.Now().Add(time.Duration(i-10) * time.Minute)
		if err := os.Chtimes(p+".json", when, when); err != nil {
			t.Fatal(err)
		}
	}
	st, err := os.Stat(paths[5])
	if err != nil {
		t.Fatal(err)
	}
	roomy.opts.Budget = turnstone.Bytes(onDisk(st) * 5 / 2)
	roomy.evict()
	for i, p := range paths {
		if _, err := os.Stat(p); (err == nil) != (i >= 4) {
			t.Errorf("image %d: %v", i, err)
		}
	}
}

// Concurrent requests for the same stack make it once.
func TestStackTogether(t *testing.T) {
	c := smallChain(t, 4)
	dir := filepath.Join(t.TempDir(), "images")
	var wg sync.WaitGroup
	got := make([]string, 8)
	for i := range got {
		wg.Go(func() {
			paths, release, err := New(dir, c.m, Options{}).Stack(context.Background(),
				turnstone.TreeRef{}, historyOf([]Item{c.items[3], c.items[2], c.items[1],
					c.items[0]}))
			if err != nil {
				t.Error(err)
				return
			}
			defer release()
			got[i] = strings.Join(paths, " ")
		})
	}
	wg.Wait()
	for _, paths := range got {
		if paths != got[0] || paths == "" {
			t.Errorf("%q and %q", got[0], paths)
		}
	}
	if c.m.Opens() != 4 {
		t.Errorf("%d files were read instead of 4", c.m.Opens())
	}
}

// A turn that arrived by a merge is in the history with its receipt; its own known stack is not
// used for the merge.
func TestSideTurns(t *testing.T) {
	c := smallChain(t, 3)
	cache := New(filepath.Join(t.TempDir(), "images"), c.m, Options{})
	c.stack(cache, 1)
	c.stack(cache, 3) // turn 3 is the side's, on turn 1
	merged := c.states[1].clone(map[*model]*model{})
	merged.children["merged"] = fileModel("merged")
	c.add(merged)
	side := c.items[2]
	side.Side, side.Tree = true, c.items[1].Tree
	walked := []Item{c.items[3], side, c.items[1], c.items[0]}
	paths, release, err := cache.Stack(t.Context(), turnstone.TreeRef{}, historyOf(walked))
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	c.check(paths, 4)
}

func TestStackErrors(t *testing.T) {
	c := smallChain(t, 2)
	bad := errors.New("the history is broken")
	broken := func(yield func(Item, error) bool) {
		_ = yield(c.items[1], nil) && yield(Item{}, bad)
	}
	cache := New(filepath.Join(t.TempDir(), "images"), c.m, Options{})
	if _, _, err := cache.Stack(t.Context(), turnstone.TreeRef{}, broken); !errors.Is(err, bad) {
		t.Errorf("got %v", err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := New(file, c.m, Options{}).Stack(t.Context(), turnstone.TreeRef{},
		c.history(2)); turnstone.KindOf(err) != turnstone.KindUnavailable {
		t.Errorf("a file as the cache: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := cache.Stack(ctx, turnstone.TreeRef{}, c.history(2)); !errors.Is(err,
		context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// A removed image is made again from its recipe with the same bytes.
func TestRemake(t *testing.T) {
	c := smallChain(t, 5)
	dir := filepath.Join(t.TempDir(), "images")
	cache := New(dir, c.m, Options{})
	c.stack(cache, 2)
	paths, release, err := cache.Stack(t.Context(), turnstone.TreeRef{}, c.history(4))
	if err != nil {
		t.Fatal(err)
	}
	recipes, err := cache.Recipes(paths)
	if err != nil {
		t.Fatal(err)
	}
	release()
	var names []string
	var before [][]byte
	for _, path := range paths {
		names = append(names, filepath.Base(path))
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		before = append(before, start(t, f))
		_ = f.Close()
	}
	if held, release, err := cache.Hold(names); err != nil || !slices.Equal(held, paths) {
		t.Errorf("%q, %v", held, err)
	} else {
		release()
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if _, _, err := cache.Hold(names); turnstone.KindOf(err) != turnstone.KindNotFound {
		t.Errorf("images that are gone: %v", err)
	}
	if _, _, err := cache.Hold(
		[]string{"../../etc/passwd"}); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Errorf("a bad name: %v", err)
	}
	again, release, err := cache.Remake(t.Context(), recipes, c.history(5)) // a turn later
	if err != nil || !slices.Equal(again, paths) {
		t.Fatalf("%q, %v", again, err)
	}
	release()
	for i, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(start(t, f), before[i]) {
			t.Errorf("image %d is another than it was", i)
		}
		_ = f.Close()
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if _, _, err := cache.Remake(t.Context(), recipes,
		c.history(1)); turnstone.KindOf(err) != turnstone.KindNotFound {
		t.Errorf("with too short a history: %v", err)
	}
	recipes[0].To = c.items[3].Tree
	if _, _, err := cache.Remake(t.Context(), recipes,
		c.history(5)); turnstone.KindOf(err) != turnstone.KindIntegrity {
		t.Errorf("a recipe that was changed: %v", err)
	}
}

// FuzzPlan replaces the cached plans: the stack is correct.
func FuzzPlan(f *testing.F) {
	m := treetest.NewStore()
	first := dirModel(0o755, map[string]*model{"f": fileModel("one")})
	second := first.clone(map[*model]*model{})
	second.children["g"] = fileModel("two")
	items := []Item{{Key: turnstone.DigestBytes([]byte("2")), Number: 2, Tree: second.put(f, m)},
		{Key: turnstone.DigestBytes([]byte("1")), Number: 1, Tree: first.put(f, m)}}
	dir := filepath.Join(f.TempDir(), "images")
	cache := New(dir, m, Options{})
	for n := range items {
		_, release, err := cache.Stack(f.Context(), turnstone.TreeRef{}, historyOf(items[1-n:]))
		if err != nil {
			f.Fatal(err)
		}
		release()
	}
	plan := cache.planPath(turnstone.TreeRef{}, items[0])
	good, err := os.ReadFile(plan)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(`{"format":1,"segments":[]}`))
	f.Add(bytes.ReplaceAll(good, []byte(`"turns":1`), []byte(`"turns":-1`)))
	f.Add(bytes.ReplaceAll(good, []byte(`"turns":1`), []byte(`"turns":1000000000`)))
	f.Fuzz(func(t *testing.T, b []byte) {
		if err := os.WriteFile(plan, b, 0o600); err != nil {
			t.Fatal(err)
		}
		paths, release, err := cache.Stack(t.Context(), turnstone.TreeRef{}, historyOf(items))
		if err != nil {
			return // an error; nothing wrong is mounted
		}
		defer release()
		var stack []*layerFile
		for i, path := range paths {
			f, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			stack = append([]*layerFile{readLayer(t, i, f, "fs")}, stack...)
			_ = f.Close()
		}
		compare(t, mergeLayers(stack, map[[2]int64]*model{}), second)
	})
}
