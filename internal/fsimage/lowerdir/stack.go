package lowerdir

import (
	"context"
	"encoding/json"
	"iter"
	"os"
	"path/filepath"
	"slices"

	"turnstone.dev/turnstone"
)

// A segment is an image of a stack: a sequence of turns.
type segment struct {
	Image  string            `json:"image"` // its key
	From   turnstone.TreeRef `json:"from"`
	To     turnstone.TreeRef `json:"to"`
	Newest turnstone.Digest  `json:"newest"` // key of the newest turn that it spans
	Turns  int               `json:"turns"`
	Bytes  int64             `json:"bytes"` // its disk usage
	Rent   int64             `json:"rent"`  // total bytes of all images that were made above it
}

// A stacking is the cached stack of a state, so that a start need not walk the history.
type stacking struct {
	Format   int       `json:"format"`
	Segments []segment `json:"segments"` // lowest first
}

// planFormat also changes with the format of images.
const planFormat = 2

// Stack returns the paths of the images, lowest first, that together with the template, whose tree
// is base, result in the tree of history's newest turn and the /context of all of its turns. They
// stay until release is called; release must be called. An empty history needs no images. A missing
// image is made first, which takes as long as writing its content.
func (c *Cache) Stack(ctx context.Context, base turnstone.TreeRef, history History) (paths []string,
	release func(), err error) {
	h := newWalk(history)
	defer h.stop()
	newest, ok, err := h.at(0)
	if err != nil || !ok {
		return nil, func() {}, err
	}
	if plan, ok := c.recall(base, newest); ok {
		if held, missing := c.holdAll(plan.Segments); missing == "" {
			return held.paths(), held.release, nil
		}
	}
	if err := c.mkdirs(); err != nil {
		return nil, nil, err
	}
	// Another process that makes a larger image may evict a new image before it is held.
	for tries := 0; ; tries++ {
		plan, err := c.build(ctx, base, h, false)
		if err != nil {
			return nil, nil, err
		}
		held, missing := c.holdAll(plan.Segments)
		if missing == "" {
			c.evict()
			return held.paths(), held.release, nil
		}
		if tries == 3 {
			return nil, nil, unavailable(c.dir, errLost)
		}
	}
}

// Flatten makes what Stack would make for history, merges images before a stack reaches its maximum
// depth, and makes images durable. It runs in the background after a turn.
func (c *Cache) Flatten(ctx context.Context, base turnstone.TreeRef, history History) error {
	h := newWalk(history)
	defer h.stop()
	if _, ok, err := h.at(0); err != nil || !ok {
		return err
	}
	if err := c.mkdirs(); err != nil {
		return err
	}
	plan, err := c.build(ctx, base, h, true)
	if err != nil {
		return err
	}
	held, _ := c.holdAll(plan.Segments) // do not evict the images for the next turn here
	defer held.release()
	for _, s := range plan.Segments {
		if err := c.persist(s.Image); err != nil {
			return err
		}
	}
	c.evict()
	return nil
}

// build finds the deepest existing stack for a turn of h, adds the later turns as a single image,
// and stores the stack. In the background it also merges images if that is cheaper; otherwise only
// if the stack is full.
func (c *Cache) build(ctx context.Context, base turnstone.TreeRef, h *walk,
	background bool) (*stacking, error) {
	newest, _, err := h.at(0)
	if err != nil {
		return nil, err
	}
	segments, n, err := c.known(base, h)
	if err != nil {
		return nil, err
	}
	if n > 0 {
		from := base
		if len(segments) > 0 {
			from = segments[len(segments)-1].To
		}
		segments = append(slices.Clone(segments),
			segment{From: from, To: newest.Tree, Newest: newest.Key, Turns: n})
	}
	segments = shorten(segments, c.opts.MaxStack, background)
	if top := &segments[len(segments)-1]; top.Image == "" {
		if err := c.make(ctx, top, h); err != nil {
			return nil, err
		}
		for i := range segments[:len(segments)-1] {
			segments[i].Rent += top.Bytes
		}
	}
	plan := &stacking{Format: planFormat, Segments: segments}
	return plan, c.remember(base, newest, plan)
}

// shorten joins segments so that no more than most are left; in the background it leaves room for
// another segment. If the background did not run, the next start has to pay, without rewriting
// everything above the bottom for each turn.
func shorten(segments []segment, most int, background bool) []segment {
	if background {
		return merge(segments, max(1, most-1), true)
	}
	return merge(segments, most, len(segments) > most)
}

// merge joins the segments from some position up to the top into a new segment, so that no more
// than limit are left. By rent or buy it also joins the segments above a segment with that segment
// if the data written above equals its own size times the number of possible segments: each byte is
// then rewritten at most a number of times that is logarithmic in the history's length, and large
// segments stay at the bottom (Mathieu et al., Bigtable Merge Compaction, 2014).
func merge(segments []segment, limit int, rent bool) []segment {
	start := min(len(segments)-1, limit-1)
	for i := 0; rent && i < start; i++ {
		if s := segments[i]; s.Rent >= int64(limit-1-i)*s.Bytes {
			start = i
		}
	}
	if start == len(segments)-1 {
		return segments
	}
	joined := segment{From: segments[start].From, To: segments[len(segments)-1].To,
		Newest: segments[len(segments)-1].Newest}
	for _, s := range segments[start:] {
		joined.Turns += s.Turns
	}
	return append(slices.Clone(segments[:start]), joined)
}

// known returns the existing segments for the newest turn of h that has any, and the number of
// later turns.
func (c *Cache) known(base turnstone.TreeRef, h *walk) (below []segment, after int, err error) {
	partial := make(map[turnstone.Digest][]segment) // by the newest turn that they span
	for i := 0; ; i++ {
		item, ok, err := h.at(i)
		if err != nil {
			return nil, 0, err
		}
		if !ok {
			return nil, i, nil
		}
		if item.Side {
			continue
		}
		if below, ok := partial[item.Key]; ok {
			return below, i, nil
		}
		plan, ok := c.recall(base, item)
		if !ok {
			continue
		}
		usable := plan.Segments[:c.usable(plan.Segments)]
		switch {
		case len(usable) == len(plan.Segments):
			return usable, i, nil
		case len(usable) > 0:
			partial[usable[len(usable)-1].Newest] = usable
		}
	}
}

// recall reads the cached stack of the state of item.
func (c *Cache) recall(base turnstone.TreeRef, item Item) (*stacking, bool) {
	path := c.planPath(base, item)
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, false
	}
	var s stacking
	if json.Unmarshal(b, &s) != nil || s.Format != planFormat ||
		len(s.Segments) == 0 || !s.leads(base, item) {
		return nil, false
	}
	touch(path)
	return &s, true
}

// leads reports whether the segments lead from base to the state of item.
func (s *stacking) leads(base turnstone.TreeRef, item Item) bool {
	at := base
	for _, seg := range s.Segments {
		if seg.From != at || seg.Turns <= 0 || !keyRule.MatchString(seg.Image) {
			return false
		}
		at = seg.To
	}
	return at == item.Tree
}

func (c *Cache) remember(base turnstone.TreeRef, item Item, s *stacking) error {
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return replace(c.planPath(base, item), b)
}

func (c *Cache) planPath(base turnstone.TreeRef, item Item) string {
	key := turnstone.DigestBytes([]byte(string(base.Root) + "\n" + string(item.Key)))
	return filepath.Join(c.dir, "plans", key.Hex()+".json")
}

// A walk caches the items of a history, which can be iterated only once.
type walk struct {
	next  func() (Item, error, bool)
	stop  func()
	items []Item
	err   error
	end   bool
}

// from returns the history that begins with item i. It shares only the items read so far; its owner
// continues independently.
func (w *walk) from(i int) *walk {
	at := func() (Item, error, bool) {
		item, ok, err := w.at(i)
		i++
		return item, err, ok || err != nil
	}
	return &walk{next: at, stop: func() {}}
}

// find returns the position of the turn with this key.
func (w *walk) find(key turnstone.Digest) (int, error) {
	for i := 0; ; i++ {
		item, ok, err := w.at(i)
		switch {
		case err != nil:
			return 0, err
		case !ok:
			return 0, turnstone.Errorf("image.remake", turnstone.KindNotFound, string(key),
				"is not in the history")
		case item.Key == key:
			return i, nil
		}
	}
}

func newWalk(h History) *walk {
	w := new(walk)
	w.next, w.stop = iter.Pull2(h)
	return w
}

// at returns item i, from 0 for the newest; false if there is none.
func (w *walk) at(i int) (Item, bool, error) {
	for len(w.items) <= i && !w.end && w.err == nil {
		item, err, ok := w.next()
		switch {
		case !ok:
			w.end = true
		case err != nil:
			w.err = err
		default:
			w.items = append(w.items, item)
		}
	}
	if i < len(w.items) {
		return w.items[i], true, nil
	}
	return Item{}, false, w.err
}
