package syntax

import (
	"sync"
	"testing"
)

// TestConcurrent parses from several goroutines, including grammars.
func TestConcurrent(t *testing.T) {
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for _, e := range ruleExamples {
				if got := codeOf(Parse([]byte(e.src))); got != e.want {
					t.Errorf("%s: %s, want %s", e.src, got, e.want)
				}
			}
		})
	}
	wg.Wait()
}
