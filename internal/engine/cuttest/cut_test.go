package cuttest

import (
	"cmp"
	"flag"
	"maps"
	"slices"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/testsize"
)

// holds has the kinds of operations that give the same on each substrate, cut into turns or not, and
// the same as on the host. docs/context.md has the others.
var holds = map[string][]kind{
	"gvisor": {plainFiles, times, holes, hardLinks, movedDirs, noMoves, noDirMoves, exchanges, specials, xattrs, lists,
		caps, descriptors, users},
	"qemu": {plainFiles, times, holes, punched, hardLinks, movedDirs, noMoves, noDirMoves, setIDs, exchanges, specials, xattrs,
		caps, descriptors, users},
}

// The two ways that are compared.
const (
	andTheHost = "one turn, and the host"
	andOne     = "several turns, and one"
)

// otherError reports that an operation fails on gVisor and on Linux, with different numbers, because they
// check in another order.
func (w *world) otherError(d *difference) bool {
	if w.substrate != "gvisor" || d.where != andTheHost || !isError(d.want) || !isError(d.got) {
		return false
	}
	return strings.HasPrefix(d.op, "as ") && d.got == "EACCES" || slices.Contains([]string{
		"rename: EISDIR, not ENOTEMPTY", "heldmove: EISDIR, not ENOTEMPTY", "noreplace: EINVAL, not EEXIST",
	}, strings.TrimPrefix(d.kind(), andTheHost+": "))
}

// Flags for a search by hand: go test -run TestCuts/state -args -kinds 'plain files,hard links' -first 100.
var (
	someKinds = flag.String("kinds", "", "the kinds of operations, instead of those that hold; all: every one")
	firstSeed = flag.Uint64("first", 0, "the first seed of random sequences")
	mostKinds = flag.Int("shorten", 8, "the kinds of differences whose sequences are made short")
)

func (w *world) supports(k kind) bool {
	if *someKinds != "" {
		return *someKinds == "all" || slices.Contains(strings.Split(*someKinds, ","), string(k))
	}
	return slices.Contains(holds[w.substrate], k)
}

// A cutting performs the same sequences in one turn and in several, on branches of one session.
type cutting func(s *session, of []sequence) (whole, cut *performance)

// onAState begins with a state that a turn left, and cuts into turns.
func onAState(s *session, of []sequence) (whole, cut *performance) {
	s.begin(of)
	s.fork("main", "whole")
	cut = s.perform("main", of)
	cut.pieces(0)
	return s.whole("whole", of), cut
}

// onAMerge performs the second pieces of every other sequence on a branch, which it merges.
func onAMerge(s *session, of []sequence) (whole, cut *performance) {
	s.begin(of)
	s.fork("main", "whole")
	cut = s.perform("main", of)
	cut.on("main", 0, 1, all)
	s.fork("main", "side")
	cut.on("main", 1, 2, func(i int) bool { return i%2 == 0 })
	cut.on("side", 1, 2, func(i int) bool { return i%2 == 1 })
	s.merge("side", "main")
	cut.pieces(2)
	return s.whole("whole", of), cut
}

// inAHome performs sequences in a home, which has no part in the states of the turns.
func inAHome(s *session, of []sequence) (whole, cut *performance) {
	other := s.world.session(s.image)
	for _, one := range []*session{s, other} {
		one.home, one.folder = one.name, "/root"
		one.begin(of)
	}
	cut = s.perform("main", of)
	cut.pieces(0)
	return other.whole("main", of), cut
}

// begin makes the folders of sequences, and brings the program that performs them.
func (s *session) begin(of []sequence) {
	s.t.Helper()
	begins := make([]string, len(of))
	for i := range of {
		begins[i] = name(i) + " begin"
	}
	results, _ := s.turn("main", begins, document.Transfer{Path: s.program, Dest: performer})
	if slices.ContainsFunc(results, func(r string) bool { return r != "ok" }) {
		s.t.Fatal(results)
	}
}

// whole performs sequences in one turn of a branch.
func (s *session) whole(branch string, of []sequence) *performance {
	s.t.Helper()
	p := s.perform(branch, of)
	p.on(branch, 0, len(of[0]), all)
	return p
}

// differences performs sequences in one turn, in several and on the host. It returns what differs, at
// most one for each sequence.
func (w *world) differences(of []sequence, how cutting) (all []*difference, hashes [2]turnstone.Digest) {
	w.t.Helper()
	longest := 3 // as a merge needs
	for _, s := range of {
		longest = max(longest, len(s))
	}
	even := make([]sequence, len(of))
	for i, s := range of {
		even[i] = s.padded(longest)
	}
	whole, cut := how(w.session("base"), even)
	hashes = [2]turnstone.Digest{whole.end(), cut.end()}
	for i, s := range even {
		d := compare(i, andTheHost, s, onHost(w.t, s), whole.shows[i], w.otherError)
		if d == nil {
			d = compare(i, andOne, s, whole.shows[i], cut.shows[i], w.otherError)
		}
		if d != nil {
			all = append(all, d)
		}
	}
	return all, hashes
}

// check performs sequences, and reports for each kind of difference a short sequence that shows it.
func (w *world) check(of []sequence, how cutting) {
	w.t.Helper()
	all, hashes := w.differences(of, how)
	byKind := map[string]*shortening{}
	for _, d := range all {
		k := d.kind()
		if byKind[k] == nil {
			byKind[k] = &shortening{kind: k, s: of[d.of], d: d}
		}
		byKind[k].count++
		byKind[k].take(of[d.of], d)
	}
	kinds := slices.SortedFunc(maps.Values(byKind), func(a, b *shortening) int { return cmp.Compare(b.count, a.count) })
	w.shorten(kinds[:min(len(kinds), *mostKinds)], how)
	for _, k := range kinds {
		w.t.Errorf("%s (%d of %d sequences)\n%s\n\n%s", k.kind, k.count, len(of), k.d, indented(k.s.String()))
	}
	if len(all) == 0 && hashes[0] != hashes[1] {
		w.t.Errorf("FS hash %s in one turn, %s in several", hashes[0], hashes[1])
	}
}

func indented(s string) string { return "\t" + strings.ReplaceAll(s, "\n", "\n\t") }

// A shortening makes a sequence shorter that shows a difference of a kind.
type shortening struct {
	kind  string
	count int
	s     sequence
	d     *difference
	size  int // operations that are left out at once
}

// take reports whether s, which shows d, is a shorter sequence for the kind.
func (k *shortening) take(s sequence, d *difference) bool {
	if d.kind() != k.kind || len(s)+len(s.ops()) >= len(k.s)+len(k.s.ops()) {
		return false
	}
	k.s, k.d = s, d
	return true
}

// candidates are shorter sequences, each twice, because a cutting may do something else with every
// other one.
func (k *shortening) candidates() (all []sequence) {
	n := len(k.s.ops())
	for at := 0; at < n; at += k.size {
		c := k.s.without(at, min(n, at+k.size))
		all = append(all, c, c)
	}
	for i := range len(k.s) - 1 {
		c := k.s.joined(i)
		all = append(all, c, c)
	}
	return all
}

// shorten makes the sequences of kinds shorter while that shows differences of the same kinds. Each
// round tries all candidates of all kinds at once.
func (w *world) shorten(kinds []*shortening, how cutting) {
	w.t.Helper()
	for _, k := range kinds {
		k.size = max(1, len(k.s.ops())/2)
	}
	for {
		var all []sequence
		var of []*shortening
		for _, k := range kinds {
			if k.size > 0 {
				c := k.candidates()
				all, of = append(all, c...), append(of, slices.Repeat([]*shortening{k}, len(c))...)
			}
		}
		if len(all) == 0 {
			return
		}
		found, _ := w.differences(all, how)
		better := map[*shortening]bool{}
		for _, d := range found {
			better[of[d.of]] = of[d.of].take(all[d.of], d) || better[of[d.of]]
		}
		for _, k := range kinds {
			if better[k] {
				k.size = max(1, min(k.size, len(k.s.ops())/2))
			} else {
				k.size /= 2 // none at the end
			}
		}
	}
}

// TestCuts: random sequences of operations, cut into turns at random places, leave the files and give
// the results that they do in one turn, and on the host.
//
//testrun:qemu
func TestCuts(t *testing.T) {
	for name, c := range map[string]struct {
		how    cutting
		shares []string
	}{
		"state": {onAState, shared}, "merge": {onAMerge, shared}, "home": {inAHome, shared},
		"image": {onAnImage, []string{"kernel", "cache"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, c.shares...)
			kinds := map[kind]bool{}
			for _, k := range everyKind {
				kinds[k] = w.supports(k)
			}
			for round := range testsize.Of(1, 3) {
				w.check(random(t, *firstSeed+uint64(round), testsize.Of(150, 250), kinds), c.how)
			}
		})
	}
}

// random makes sequences of three to five pieces.
func random(t testing.TB, seed uint64, n int, kinds map[kind]bool) []sequence {
	out := make([]sequence, n)
	for i := range out {
		g := newGenerator(t, seed<<32|uint64(i), kinds)
		out[i] = g.sequence(t, 3+g.IntN(3))
	}
	return out
}
