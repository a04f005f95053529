package merge

import (
	"bytes"
	"slices"
	"unicode/utf8"

	"turnstone.dev/turnstone"
	"znkr.io/diff"
)

// Limits for merging by lines: larger files are compared as a whole. The content comes from a
// sandbox, and three files are in memory together.
const (
	maxText  = 16 << 20 // bytes of each file
	maxLines = 1 << 20  // lines of each file
	// The smallest difference of two texts can take long to find: 12 s for twice 24,000 adversarial
	// lines. Beyond exactLines, in both texts together, the texts are first cut at unique lines,
	// and only short remaining parts are compared exactly.
	exactLines = 20_000
	exactPart  = 4_000
)

// isText reports whether b supports merging by lines and markers.
func isText(b []byte) bool {
	return len(b) <= maxText && bytes.IndexByte(b, 0) < 0 && utf8.Valid(b) &&
		bytes.Count(b, []byte{'\n'}) < maxLines
}

// names are the names of the three versions in markers.
type names struct{ ours, base, theirs string }

// A span is a range of lines, from from on and before to.
type span struct{ from, to int }

// A hunk is a range of the base's lines that a side has replaced by its own range.
type hunk struct{ base, side span }

// A region is a part of a merged text: base's lines and the corresponding lines in ours and theirs.
type region struct {
	base, ours, theirs span
	by                 turnstone.Side // the side that changed it; None: both, in different ways
}

// mergeText merges three texts line by line, like `git merge-file --diff3`: adjacent changes
// conflict, unless they are equal. At a conflict the text contains both versions and the base's
// between markers. conflicts counts these places.
func mergeText(base, ours, theirs []byte, n names) (merged []byte, conflicts int) {
	var in interner
	b, o, t := in.lines(base), in.lines(ours), in.lines(theirs)
	regions := align(b.ids, o.ids, t.ids)
	var out bytes.Buffer
	at := 0 // the next line of base
	cr := crlf(base) || crlf(ours) || crlf(theirs)
	for _, r := range regions {
		b.write(&out, span{at, r.base.from})
		at = r.base.to
		switch r.by {
		case turnstone.SideOurs:
			o.write(&out, r.ours)
		case turnstone.SideTheirs:
			t.write(&out, r.theirs)
		default:
			conflicts++
			marker(&out, "<<<<<<<", n.ours, cr)
			o.writeWhole(&out, r.ours, cr)
			marker(&out, "|||||||", n.base, cr)
			b.writeWhole(&out, r.base, cr)
			marker(&out, "=======", "", cr)
			t.writeWhole(&out, r.theirs, cr)
			marker(&out, ">>>>>>>", n.theirs, cr)
		}
	}
	b.write(&out, span{at, len(b.ids)})
	return out.Bytes(), conflicts
}

// align returns the regions that differ, in the order of the base's lines.
func align(base, ours, theirs []int32) []region {
	ho, ht := hunks(base, ours), hunks(base, theirs)
	var regions []region
	shiftO, shiftT := 0, 0 // the side's line number of the base's line 0, after the hunks so far
	for len(ho) > 0 || len(ht) > 0 {
		var cover span
		if len(ht) == 0 || len(ho) > 0 && ho[0].base.from <= ht[0].base.from {
			cover = ho[0].base
		} else {
			cover = ht[0].base
		}
		no, nt := 0, 0
		for grown := true; grown; {
			grown = false
			for ; no < len(ho) && ho[no].base.from <= cover.to; no++ {
				cover.to, grown = max(cover.to, ho[no].base.to), true
			}
			for ; nt < len(ht) && ht[nt].base.from <= cover.to; nt++ {
				cover.to, grown = max(cover.to, ht[nt].base.to), true
			}
		}
		r := region{base: cover}
		r.ours.from, r.theirs.from = cover.from+shiftO, cover.from+shiftT
		for _, h := range ho[:no] {
			shiftO += h.side.to - h.side.from - (h.base.to - h.base.from)
		}
		for _, h := range ht[:nt] {
			shiftT += h.side.to - h.side.from - (h.base.to - h.base.from)
		}
		r.ours.to, r.theirs.to = cover.to+shiftO, cover.to+shiftT
		switch {
		case nt == 0, slices.Equal(ours[r.ours.from:r.ours.to], theirs[r.theirs.from:r.theirs.to]):
			r.by = turnstone.SideOurs
		case no == 0:
			r.by = turnstone.SideTheirs
		}
		regions, ho, ht = append(regions, r), ho[no:], ht[nt:]
	}
	return regions
}

// hunks returns side's differences from base. At least one common line separates two hunks. A
// change with several equivalent positions is moved down as far as possible (as in git), so that
// the same change always has the same position.
func hunks(base, side []int32) []hunk {
	found := differences(base, side)
	var down []hunk // from the last hunk on, because each may slide onto the next
	for i := len(found) - 1; i >= 0; i-- {
		h := found[i]
		for {
			last, next := len(down)-1, len(base)
			if last >= 0 {
				next = down[last].base.from
			}
			h = slide(h, base, side, next)
			if last < 0 || h.base.to < next {
				break
			}
			h.base.to, h.side.to = down[last].base.to, down[last].side.to
			down = down[:last]
		}
		down = append(down, h)
	}
	slices.Reverse(down)
	return down
}

// differences returns the ranges that differ, within the limits of time.
func differences(base, side []int32) []hunk {
	var found []hunk
	if len(base)+len(side) <= exactLines {
		for _, h := range diff.Hunks(base, side, diff.Context(0)) {
			found = append(found, hunk{span{h.PosX, h.EndX}, span{h.PosY, h.EndY}})
		}
		return found
	}
	for _, h := range diff.Hunks(base, side, diff.Context(0), diff.Fast()) {
		if h.EndX-h.PosX+h.EndY-h.PosY > exactPart {
			found = append(found, hunk{span{h.PosX, h.EndX}, span{h.PosY, h.EndY}})
			continue
		}
		for _, part := range diff.Hunks(base[h.PosX:h.EndX], side[h.PosY:h.EndY], diff.Context(0)) {
			found = append(found, hunk{span{h.PosX + part.PosX, h.PosX + part.EndX},
				span{h.PosY + part.PosY, h.PosY + part.EndY}})
		}
	}
	return found
}

// slide moves h down while the change stays equivalent, and not over the base's line end.
func slide(h hunk, base, side []int32, end int) hunk {
	lines := side
	s := h.side
	if h.base.from != h.base.to {
		if s.from != s.to {
			return h // a replacement has a fixed position
		}
		lines, s = base, h.base
	}
	for n := 0; h.base.to < end && lines[s.from+n] == base[h.base.to]; n++ {
		h.base.from, h.base.to, h.side.from, h.side.to = h.base.from+1, h.base.to+1,
			h.side.from+1, h.side.to+1
	}
	return h
}

// An interner gives equal lines equal numbers, which are fast to compare.
type interner struct{ ids map[string]int32 }

// A text is the lines of a file.
type text struct {
	src  []byte
	ends []int // offset after each line
	ids  []int32
}

// lines cuts b after each newline.
func (in *interner) lines(b []byte) text {
	if in.ids == nil {
		in.ids = map[string]int32{}
	}
	t := text{src: b}
	for at := 0; at < len(b); {
		end := len(b)
		if n := bytes.IndexByte(b[at:], '\n'); n >= 0 {
			end = at + n + 1
		}
		id, ok := in.ids[string(b[at:end])]
		if !ok {
			id = int32(len(in.ids))
			in.ids[string(b[at:end])] = id
		}
		t.ids, t.ends = append(t.ids, id), append(t.ends, end)
		at = end
	}
	return t
}

// write writes the lines of s unchanged.
func (t text) write(out *bytes.Buffer, s span) {
	if s.from >= s.to {
		return
	}
	from := 0
	if s.from > 0 {
		from = t.ends[s.from-1]
	}
	out.Write(t.src[from:t.ends[s.to-1]])
}

// writeWhole writes the lines of s, and adds the last line's newline if it is missing.
func (t text) writeWhole(out *bytes.Buffer, s span, cr bool) {
	t.write(out, s)
	if s.from < s.to && t.src[t.ends[s.to-1]-1] != '\n' {
		newline(out, cr)
	}
}

func marker(out *bytes.Buffer, sign, name string, cr bool) {
	out.WriteString(sign)
	if name != "" {
		out.WriteString(" " + name)
	}
	newline(out, cr)
}

func newline(out *bytes.Buffer, cr bool) {
	if cr {
		out.WriteByte('\r')
	}
	out.WriteByte('\n')
}

// crlf reports whether the first line of b has a DOS line ending.
func crlf(b []byte) bool {
	n := bytes.IndexByte(b, '\n')
	return n > 0 && b[n-1] == '\r'
}
