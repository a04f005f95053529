package secret

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
)

// BenchmarkWriter and BenchmarkScanner: throughput for writes of the size of an agent's frames,
// with a single secret, several secrets, and a key of many lines.
func BenchmarkWriter(b *testing.B) {
	each(b, func(s *Set) io.Writer { return s.Writer(io.Discard) })
}

func BenchmarkScanner(b *testing.B) {
	each(b, func(s *Set) io.Writer { return s.Scanner() })
}

func each(b *testing.B, open func(s *Set) io.Writer) {
	rnd := rand.New(rand.NewPCG(1, 2))
	word := func(n int) string {
		var w strings.Builder
		for range n {
			w.WriteByte(
				"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"[rnd.IntN(62)])
		}
		return w.String()
	}
	var key strings.Builder
	for range 50 {
		key.WriteString(word(64) + "\n")
	}
	var text bytes.Buffer
	for text.Len() < 32<<10 {
		fmt.Fprintf(&text, "2026-11-21T23:30:00Z info: %s %d bytes from %s\n", word(8),
			rnd.IntN(100_000), word(12))
	}
	zero := make([]byte, 32<<10)
	for name, pairs := range map[string][]string{
		"one": {"A=ghp_" + word(36)}, "eight": {"A=" + word(40), "B=" + word(40), "C=" + word(40),
			"D=" + word(40), "E=" + word(40), "F=" + word(40), "G=" + word(40), "H=" + word(40)},
		"key": {"K=" + key.String()},
	} {
		s, err := New(pairs)
		if err != nil {
			b.Fatal(err)
		}
		for kind, p := range map[string][]byte{"text": text.Bytes(), "zero": zero,
			"secrets": []byte(strings.Repeat(strings.TrimSpace(pairs[0][2:])+" ",
				1+(32<<10)/len(pairs[0])))} {
			b.Run(name+"/"+kind, func(b *testing.B) {
				w := open(s)
				b.SetBytes(int64(len(p)))
				for b.Loop() {
					_, _ = w.Write(p)
				}
			})
		}
	}
}
