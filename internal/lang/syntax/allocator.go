package syntax

/*
#include <stddef.h>

// From tree-sitter's api.h. Weak, for this package is compiled before it is known
// where the function is.
extern void ts_set_allocator(
	void *(*new_malloc)(size_t), void *(*new_calloc)(size_t, size_t),
	void *(*new_realloc)(void *, size_t), void (*new_free)(void *)) __attribute__((weak));

static void use_malloc(void) {
	if (ts_set_allocator) ts_set_allocator(NULL, NULL, NULL, NULL);
}
*/
import "C"

import "sync"

// plainAllocator makes tree-sitter call malloc(3). The binding makes it call Go, which calls
// malloc: more than half of the parser's time. Both use malloc, so memory of one can be freed by
// the other.
var plainAllocator = sync.OnceFunc(func() { C.use_malloc() })
