// Package suggest finds the word that somebody meant, for hints.
package suggest

import "strings"

// longest is how much of a word counts, so that a hostile one costs little.
const longest = 64

// Nearest returns the word of known that takes the fewest edits to get from word,
// letter case aside, and how many; "" when known is empty.
func Nearest(word string, known []string) (nearest string, edits int) {
	edits = -1
	for _, k := range known {
		if d := distance(word, k); edits < 0 || d < edits {
			nearest, edits = k, d
		}
	}
	return nearest, edits
}

// distance is Levenshtein's, in bytes, of the first 64 bytes of each.
func distance(a, b string) int {
	a, b = strings.ToLower(a[:min(len(a), longest)]), strings.ToLower(b[:min(len(b), longest)])
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}
