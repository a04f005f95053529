package lowerdir

import (
	"context"
	"encoding/json"
	"iter"
	"os"
	"path/filepath"
	"slices"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/tree"
)

// A segment is one image of a stack: a run of turns.
type segment struct {
	Image  string           `json:"image"` // its key
	From   tree.Ref         `json:"from"`
	To     tree.Ref         `json:"to"`
	Newest turnstone.Digest `json:"newest"` // key of the newest turn that it spans
	Turns  int              `json:"turns"`
	Bytes  int64            `json:"bytes"` // that it takes up on disk
	Rent   int64            `json:"rent"`  // bytes of all images that were made to lie above it
}

// A stacking is what is remembered of a state, so that a start walks no history.
type stacking struct {
	Format   int       `json:"format"`
	Segments []segment `json:"segments"` // the lowest first
}

// planFormat changes with the format of images, too.
const planFormat = 1

// Stack returns the paths of the images, the lowest first, that over the template
// whose tree is base give the tree of history's newest turn, and /context of all
// of its turns. They stay until release is called, which must be. An empty history
// needs none. An image that is not there is made first, which takes as long as
// writing what it holds.
func (c *Cache) Stack(ctx context.Context, base tree.Ref, history History) (paths []string, release func(), err error) {
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
	// What is made may be thrown out before it is held, by another process that
	// makes something larger.
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

// Flatten makes what Stack would have to make for history, merges images before a
// stack gets as deep as it may, and makes durable what is not yet. It is for the
// background, after a turn.
func (c *Cache) Flatten(ctx context.Context, base tree.Ref, history History) error {
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
	held, _ := c.holdAll(plan.Segments) // what was made for the next turn is not thrown out here
	defer held.release()
	for _, s := range plan.Segments {
		if err := c.persist(s.Image); err != nil {
			return err
		}
	}
	c.evict()
	return nil
}

// build finds the deepest stack that is there for one of the turns of h, adds what
// came after as one image, and remembers the stack. In the background it also
// merges images that cost less together than apart; else only when there is no
// room for one more.
func (c *Cache) build(ctx context.Context, base tree.Ref, h *walk, background bool) (*stacking, error) {
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
		segments = append(slices.Clone(segments), segment{From: from, To: newest.Tree, Newest: newest.Key, Turns: n})
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

// shorten joins segments so that no more than most are left; in the background, so
// that there is room for one more. Nobody may have been there in the background: then it
// has to be paid for by who starts, and not by writing all above the bottom anew for each turn.
func shorten(segments []segment, most int, background bool) []segment {
	if background {
		return merge(segments, max(1, most-1), true)
	}
	return merge(segments, most, len(segments) > most)
}

// merge joins the segments from some place on to the top to one that has to be
// made, so that no more than limit are left. By rent or buy it also joins what lies
// on a segment with that segment when as much was written above it as it holds
// itself, times the segments there could be: each byte is then written anew no
// more often than the logarithm of the history's length says, and what is large
// stays at the bottom (Mathieu et al., Bigtable Merge Compaction, 2014).
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
	joined := segment{From: segments[start].From, To: segments[len(segments)-1].To, Newest: segments[len(segments)-1].Newest}
	for _, s := range segments[start:] {
		joined.Turns += s.Turns
	}
	return append(slices.Clone(segments[:start]), joined)
}

// known returns the segments that are there for the newest turn of h that has
// any, and how many turns came after those.
func (c *Cache) known(base tree.Ref, h *walk) (below []segment, after int, err error) {
	partial := make(map[turnstone.Digest][]segment) // by the newest turn that they reach to
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

// recall reads what is remembered of the state that item left.
func (c *Cache) recall(base tree.Ref, item Item) (*stacking, bool) {
	path := c.planPath(base, item)
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, false
	}
	var s stacking
	if json.Unmarshal(b, &s) != nil || s.Format != planFormat || len(s.Segments) == 0 || !s.leads(base, item) {
		return nil, false
	}
	touch(path)
	return &s, true
}

// leads says that the segments lead from base to what item left.
func (s *stacking) leads(base tree.Ref, item Item) bool {
	at := base
	for _, seg := range s.Segments {
		if seg.From != at || seg.Turns <= 0 || !keyRule.MatchString(seg.Image) {
			return false
		}
		at = seg.To
	}
	return at == item.Tree
}

func (c *Cache) remember(base tree.Ref, item Item, s *stacking) error {
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return replace(c.planPath(base, item), b)
}

func (c *Cache) planPath(base tree.Ref, item Item) string {
	key := turnstone.DigestBytes([]byte(string(base.Root) + "\n" + string(item.Key)))
	return filepath.Join(c.dir, "plans", key.Hex()+".json")
}

// A walk keeps what was walked of a history, which may be walked once only.
type walk struct {
	next  func() (Item, error, bool)
	stop  func()
	items []Item
	err   error
	end   bool
}

// from returns the history that begins with the item i. It shares what was walked
// only so far: its owner goes on by itself.
func (w *walk) from(i int) *walk {
	at := func() (Item, error, bool) {
		item, ok, err := w.at(i)
		i++
		return item, err, ok || err != nil
	}
	return &walk{next: at, stop: func() {}}
}

// find returns the place of the turn with this key.
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

// at returns the item i, from 0 for the newest; false when there is none.
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
