package merge

import (
	"context"
	"errors"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/tree"
)

// Trees merges ours and theirs, which both came from base. A base with the zero
// Ref is an empty tree: the two have nothing in common. Objects of directories that are equal in
// two of the three are not read. It reads and writes through w only, and is safe
// for concurrent use when w is.
//
// The result has a tree only when every conflict was decided. Errors are those of w.
func Trees(ctx context.Context, w tree.Writer, base, ours, theirs tree.Ref, opts Options) (*Result, error) {
	return nil, &turnstone.Error{Op: "merge.trees", Kind: turnstone.Internal, Err: errors.New("unfinished")}
}
