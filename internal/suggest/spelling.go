// Package suggest finds the most similar known word, for hints.
package suggest

import "strings"

// longest is the number of bytes of a word that count. It bounds the cost of a hostile word.
const longest = 64

// Nearest returns the word of known with the smallest edit distance from word, ignoring case, and
// the distance; "" if known is empty.
func Nearest(word string, known []string) (nearest string, edits int) {
	edits = -1
	for _, k := range known {
		if d := distance(word, k); edits < 0 || d < edits {
			nearest, edits = k, d
		}
	}
	return nearest, edits
}

// distance returns the Levenshtein distance in bytes of the first 64 bytes of each word.
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
