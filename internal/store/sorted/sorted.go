// Package sorted merges sorted sequences.
package sorted

import (
	"context"
	"iter"
	"slices"
)

// Merge yields the values of sorted sources in order, without duplicates, that want accepts. An error
// of a source, or of the context, ends the sequence.
func Merge[T any](ctx context.Context, sources []iter.Seq2[T, error], compare func(a, b T) int,
	want func(T) bool) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var none T
		type head struct {
			v    T
			err  error
			next func() (T, error, bool)
		}
		var heads []*head
		for _, src := range sources {
			next, stop := iter.Pull2(src)
			defer stop()
			if p, err, ok := next(); ok {
				heads = append(heads, &head{p, err, next})
			}
		}
		var last T
		for n := 0; len(heads) > 0; n++ {
			least := 0
			for i, h := range heads {
				if h.err != nil {
					yield(none, h.err)
					return
				}
				if compare(h.v, heads[least].v) < 0 {
					least = i
				}
			}
			h := heads[least]
			if (n == 0 || compare(h.v, last) != 0) &&
				want(h.v) && !yield(h.v, nil) {
				return
			}
			last = h.v
			var ok bool
			if h.v, h.err, ok = h.next(); !ok {
				heads = slices.Delete(heads, least, least+1)
			}
			if n%4096 == 0 && ctx.Err() != nil {
				yield(none, ctx.Err())
				return
			}
		}
	}
}
