package terminal

import (
	"bytes"
	"slices"
	"strings"

	"turnstone.dev/turnstone"
)

// A Graph draws turns as git log --graph draws commits: one column for each current line of turns.
type Graph struct {
	columns []turnstone.TurnID // the turn to which each leads
}

// Turn returns the rails of the line of the turn id, ending in a space, and the lines that follow
// it. Turns come with the highest number first.
func (g *Graph) Turn(
	id turnstone.TurnID, parents []turnstone.TurnID,
) (rails string, below []string) {
	at := slices.Index(g.columns, id)
	if at < 0 {
		at = len(g.columns)
		g.columns = append(g.columns, id)
	}
	row := strings.Repeat("| ", len(g.columns))
	rails = row[:2*at] + "* " + row[2*at+2:]
	if len(parents) == 0 {
		if at < len(g.columns)-1 {
			below = append(below, g.end(at))
		}
		g.columns = slices.Delete(g.columns, at, at+1)
		return rails, below
	}
	g.columns[at] = parents[0]
	for _, p := range parents[1:] {
		if at+1 < len(g.columns) && g.columns[at+1] == p {
			below = append(below, g.lean(at))
			continue
		}
		below = append(below, g.open(at))
		g.columns = slices.Insert(g.columns, at+1, p)
	}
	for _, p := range parents {
		if line, joined := g.join(p); joined {
			below = append(below, line)
		}
	}
	return rails, below
}

// open draws a new column at the right of column at.
func (g *Graph) open(at int) string {
	row := blank(len(g.columns) + 1)
	for i := range g.columns {
		if i <= at {
			row[2*i] = '|'
		} else {
			row[2*i+1] = '\\'
		}
	}
	row[2*at+1] = '\\'
	return trim(row)
}

// lean draws a line from column at into the next one.
func (g *Graph) lean(at int) string {
	row := []byte(strings.Repeat("| ", len(g.columns)))
	row[2*at+1] = '\\'
	return trim(row)
}

// end draws the columns at the right of at moving into its place.
func (g *Graph) end(at int) string {
	row := blank(len(g.columns))
	for i := range g.columns {
		switch {
		case i < at:
			row[2*i] = '|'
		case i > at:
			row[2*i-1] = '/'
		}
	}
	return trim(row)
}

// join joins two columns that lead to the turn p.
func (g *Graph) join(p turnstone.TurnID) (line string, joined bool) {
	left := slices.Index(g.columns, p)
	right := slices.Index(g.columns[left+1:], p) + left + 1
	if right == left {
		return "", false
	}
	row := blank(len(g.columns))
	for i := range g.columns {
		switch {
		case i < right:
			row[2*i] = '|'
			if i > left {
				row[2*i-1] = '_'
			}
		default:
			row[2*i-1] = '/'
		}
	}
	g.columns = slices.Delete(g.columns, right, right+1)
	return trim(row), true
}

func blank(columns int) []byte { return bytes.Repeat([]byte{' '}, 2*columns+1) }

func trim(row []byte) string { return string(bytes.TrimRight(row, " ")) }
