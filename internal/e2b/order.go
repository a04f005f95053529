package e2b

import (
	"cmp"
	"math"
	"strconv"
	"strings"

	"turnstone.dev/turnstone/sandboxes"
)

// A place is that of a sandbox in a list in the order of starts. The ID alone does not do: IDs of one
// millisecond are in no order.
type place struct {
	started int64 // nanoseconds since 1970
	id      string
}

func placeOf(i sandboxInfo) place { return place{i.StartedAt.UnixNano(), i.SandboxID} }

func (p place) compare(q place) int {
	return cmp.Or(cmp.Compare(p.started, q.started), strings.Compare(p.id, q.id))
}

// token returns the token of the page that begins behind p.
func (p place) token() string { return oldestFirst + strconv.FormatInt(p.started, 10) + "." + p.id }

// parsePlace decodes a token. Without one it returns a place before all sandboxes.
func parsePlace(token string) (place, error) {
	if token == "" {
		return place{started: math.MinInt64}, nil
	}
	at, id, _ := strings.Cut(strings.TrimPrefix(token, oldestFirst), ".")
	started, err := strconv.ParseInt(at, 10, 64)
	if err != nil || !sandboxes.IsID(id) {
		return place{}, bad("the token is forged")
	}
	return place{started, id}, nil
}
