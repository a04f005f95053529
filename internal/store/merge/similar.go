package merge

import (
	"bytes"
	"cmp"
	"path"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"

	"turnstone.dev/turnstone"
)

// Limits for the detection of renames with changed content. Files beyond these limits count as a
// deletion and an addition, and the result reports that.
const (
	minSimilar  = 50        // percent, as in git
	minSameName = 75        // percent, for the only two files with a name, as in git
	maxPairs    = 1_000_000 // compared pairs; git's limit is 7,000 times 7,000
	maxSimilar  = 1 << 20   // bytes of a file whose content is compared
	// files with the same content that are tried for the same name, as in git
	maxAlike     = 100
	maxPrintable = 64 << 20 // total bytes of files whose content is compared
)

// detect finds the destinations in root of the files of sources.
func (m *merger) detect(sources map[string]*node, root *node) (map[string]found, error) {
	if len(sources) == 0 {
		return nil, nil
	}
	var targets []candidate
	if err := m.findTargets("/", m.base, root, &targets); err != nil || len(targets) == 0 {
		return nil, err
	}
	var from []candidate
	for p, n := range sources {
		from = append(from, candidate{p, n})
	}
	byPath := func(a, b candidate) int { return strings.Compare(a.path, b.path) }
	slices.SortFunc(from, byPath)
	slices.SortFunc(targets, byPath)
	s := &search{m: m, out: map[string]found{}, taken: map[string]bool{},
		prints: map[string][]chunk{}}
	s.exact(from, targets)
	return s.out, s.similar(s.left(from), s.leftTargets(targets))
}

// A search looks for the renames of a side.
type search struct {
	m      *merger
	out    map[string]found
	taken  map[string]bool // used targets
	prints map[string][]chunk
	size   int64 // total size of the files with prints
}

func (s *search) match(a, b candidate, percent int) {
	s.out[a.path] = found{b.path, percent}
	s.taken[b.path] = true
}

func (s *search) left(from []candidate) []candidate {
	return slices.DeleteFunc(slices.Clone(from),
		func(c candidate) bool { _, ok := s.out[c.path]; return ok })
}

func (s *search) leftTargets(to []candidate) []candidate {
	return slices.DeleteFunc(slices.Clone(to), func(c candidate) bool { return s.taken[c.path] })
}

// exact matches files with the same content, those with the same name first.
func (s *search) exact(from, to []candidate) {
	byContent := map[turnstone.Digest][]candidate{}
	for _, a := range from {
		byContent[a.n.Content.Digest] = append(byContent[a.n.Content.Digest], a)
	}
	for _, sameName := range []bool{true, false} {
		for _, b := range to {
			same := byContent[b.n.Content.Digest]
			if s.taken[b.path] {
				continue
			}
			for i, a := range same[:min(len(same), maxAlike)] {
				if sameName && path.Base(a.path) != path.Base(b.path) {
					continue
				}
				s.match(a, b, 100)
				copy(same[1:i+1], same[:i])
				byContent[b.n.Content.Digest] = same[1:]
				break
			}
		}
	}
}

// similar matches files with similar content: first those that are the only files with their name,
// then the most similar files.
func (s *search) similar(from, to []candidate) error {
	small := func(c candidate) bool { return c.n.Size > maxSimilar }
	from, to = slices.DeleteFunc(from, small), slices.DeleteFunc(to, small)
	names, targetNames := only(from), only(to)
	for _, a := range from {
		name := path.Base(a.path)
		b, ok := targetNames[name]
		if !ok || names[name].path != a.path {
			continue
		}
		percent, err := s.compare(a, b, minSameName)
		if err != nil {
			return err
		}
		if percent >= minSameName {
			s.match(a, b, percent)
		}
	}
	from, to = s.left(from), s.leftTargets(to)
	if len(from)*len(to) > maxPairs {
		s.m.res.RenamesSkipped = true
		return nil
	}
	return s.matrix(from, to)
}

// only returns the files with a unique name.
func only(cs []candidate) map[string]candidate {
	out := map[string]candidate{}
	twice := map[string]bool{}
	for _, c := range cs {
		name := path.Base(c.path)
		if _, ok := out[name]; ok {
			twice[name] = true
		}
		out[name] = c
	}
	for name := range twice {
		delete(out, name)
	}
	return out
}

// matrix compares each file with each other file.
func (s *search) matrix(from, to []candidate) error {
	type pair struct {
		a, b    candidate
		percent int
		name    bool
	}
	var pairs []pair
	for _, b := range to {
		if err := s.m.ctx.Err(); err != nil {
			return err
		}
		for _, a := range from {
			percent, err := s.compare(a, b, minSimilar)
			if err != nil {
				return err
			}
			if percent >= minSimilar {
				pairs = append(pairs, pair{a, b, percent, path.Base(a.path) == path.Base(b.path)})
			}
		}
	}
	slices.SortStableFunc(pairs, func(x, y pair) int {
		if x.percent != y.percent || x.name == y.name {
			return cmp.Compare(y.percent, x.percent)
		}
		if x.name {
			return -1
		}
		return 1
	})
	for _, p := range pairs {
		if _, done := s.out[p.a.path]; !done && !s.taken[p.b.path] {
			s.match(p.a, p.b, p.percent)
		}
	}
	return nil
}

// compare returns the common part of the content of a and b, in percent of the larger file; 0 if it
// cannot reach least.
func (s *search) compare(a, b candidate, least int) (int, error) {
	large, small := max(a.n.Size, b.n.Size), min(a.n.Size, b.n.Size)
	if small*100 < large*int64(least) {
		return 0, nil
	}
	x, err := s.print(a)
	if err != nil {
		return 0, err
	}
	y, err := s.print(b)
	if err != nil {
		return 0, err
	}
	return int(common(x, y) * 100 / large), nil
}

// common returns the number of bytes that two files have in common at any positions.
func common(x, y []chunk) int64 {
	var n int64
	for len(x) > 0 && len(y) > 0 {
		switch {
		case x[0].hash < y[0].hash:
			x = x[1:]
		case x[0].hash > y[0].hash:
			y = y[1:]
		default:
			n += min(x[0].bytes, y[0].bytes)
			x, y = x[1:], y[1:]
		}
	}
	return n
}

// A chunk is a line, or 64 bytes of a longer line, with the number of bytes of the file in such
// chunks. The idea is from git's diffcore-delta.c.
type chunk struct {
	hash  uint64
	bytes int64
}

// print returns a file's chunks, sorted; none if there is too much to compare.
func (s *search) print(c candidate) ([]chunk, error) {
	key := string(c.n.Content.Digest)
	if p, ok := s.prints[key]; ok {
		return p, nil
	}
	if s.size += c.n.Size; s.size > maxPrintable {
		s.m.res.RenamesSkipped = true
		s.prints[key] = nil
		return nil, nil
	}
	b, err := s.m.read(c.n)
	if err != nil {
		return nil, err
	}
	p := chunks(b)
	s.prints[key] = p
	return p, nil
}

func chunks(b []byte) []chunk {
	var all []chunk
	for len(b) > 0 {
		n := min(64, len(b))
		if i := bytes.IndexByte(b[:n], '\n'); i >= 0 {
			n = i + 1
		}
		all = append(all, chunk{xxhash.Sum64(b[:n]), int64(n)})
		b = b[n:]
	}
	slices.SortFunc(all, func(x, y chunk) int { return cmp.Compare(x.hash, y.hash) })
	out := all[:0]
	for _, c := range all {
		if n := len(out); n > 0 && out[n-1].hash == c.hash {
			out[n-1].bytes += c.bytes
			continue
		}
		out = append(out, c)
	}
	return slices.Clip(out)
}
