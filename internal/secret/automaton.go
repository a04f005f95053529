package secret

// An automaton finds all values in a text in a single pass (A. V. Aho and M. J. Corasick,
// "Efficient string matching: an aid to bibliographic search", CACM 18(6), 1975). Its state after a
// byte is the longest suffix of the text that is a prefix of a value. It is immutable and safe for
// concurrent use.
type automaton struct {
	nodes   []node
	root    [256]int32 // next state after a value's first byte; 0: no value begins with the byte
	needles []needle

	shortest, longest int
	// shifts holds for two bytes their minimum distance from the last two bytes of any value's
	// prefix of length shortest (S. Wu and U. Manber, "A fast algorithm for multi-pattern
	// searching", 1994).
	shifts *[1 << 16]uint8
}

type node struct {
	child, sibling int32 // the first child and the next sibling; 0: none
	fail           int32 // the state for the longest shorter suffix that is a prefix
	depth          int32 // in bytes
	end            int32 // the longest needle that ends here, from 1; 0: none
	through        int32 // a needle that contains the node
	b              byte
}

// start is the state of the empty text.
const start = 0

// newAutomaton returns an automaton for needles. Of needles with the same value the first counts.
func newAutomaton(needles []needle) *automaton {
	a := &automaton{needles: needles, nodes: make([]node, 1), shortest: MaxValue}
	for i := range needles {
		a.add(int32(i))
	}
	a.shift()
	queue := make([]int32, 0, len(a.nodes))
	for k := a.nodes[start].child; k != 0; k = a.nodes[k].sibling {
		queue = append(queue, k)
	}
	// breadth first: a node's fallback is complete before the node
	for i := 0; i < len(queue); i++ {
		n := queue[i]
		if a.nodes[n].end == 0 {
			a.nodes[n].end = a.nodes[a.nodes[n].fail].end
		}
		for k := a.nodes[n].child; k != 0; k = a.nodes[k].sibling {
			a.nodes[k].fail = a.step(a.nodes[n].fail, a.nodes[k].b)
			queue = append(queue, k)
		}
	}
	return a
}

func (a *automaton) add(i int32) {
	value := a.needles[i].value
	a.shortest, a.longest = min(a.shortest, len(value)), max(a.longest, len(value))
	n := int32(start)
	for _, b := range value {
		next := a.child(n, b)
		if next == 0 {
			next = int32(len(a.nodes))
			a.nodes = append(a.nodes,
				node{sibling: a.nodes[n].child, depth: a.nodes[n].depth + 1, through: i, b: b})
			a.nodes[n].child = next
			if n == start {
				a.root[b] = next
			}
		}
		n = next
	}
	if a.nodes[n].end == 0 {
		a.nodes[n].end = i + 1
	}
}

func (a *automaton) child(n int32, b byte) int32 {
	k := a.nodes[n].child
	for k != 0 && a.nodes[k].b != b {
		k = a.nodes[k].sibling
	}
	return k
}

// step returns the state after another byte.
func (a *automaton) step(n int32, b byte) int32 {
	for n != start {
		if k := a.child(n, b); k != 0 {
			return k
		}
		n = a.nodes[n].fail
	}
	return a.root[b]
}

// shift computes the shifts. Values are longer than two bytes.
func (a *automaton) shift() {
	a.shifts = new([1 << 16]uint8)
	for i := range a.shifts {
		a.shifts[i] = uint8(min(a.shortest-1, 255))
	}
	for _, n := range a.needles {
		for j := range a.shortest - 1 {
			p := &a.shifts[int(n.value[j])<<8|int(n.value[j+1])]
			*p = min(*p, uint8(min(a.shortest-2-j, 255)))
		}
	}
}

// walk returns the state after b. At each place where values end, it calls found with the number of
// bytes of b before it and the longest of these values, and stops when found returns false.
func (a *automaton) walk(n int32, b []byte, found func(end int, value int32) bool) int32 {
	for i := 0; i < len(b); {
		if n == start {
			if i = a.skip(b, i); i == len(b) {
				break
			}
		}
		n = a.step(n, b[i])
		i++
		if e := a.nodes[n].end; e != 0 && !found(i, e-1) {
			break
		}
	}
	return n
}

// skip returns the offset from which b must be processed if the state at i is start: no complete
// value and no partial value at the end of b begins before the offset.
func (a *automaton) skip(b []byte, i int) int {
	cut := len(b) - a.longest + 1 // a value that begins here or later may be incomplete in b
	for i < cut {
		end := i + a.shortest - 2
		if by := int(a.shifts[int(b[end])<<8|int(b[end+1])]); by > 0 {
			i = min(i+by, cut)
			continue
		}
		if k := a.root[b[i]]; k != start && a.child(k, b[i+1]) != 0 {
			return i
		}
		i++
	}
	for i < len(b) && a.root[b[i]] == start {
		i++
	}
	return i
}
