package access

import "turnstone.dev/turnstone"

// Gone reports whether err, of a call about a sandbox, says that it is not there, as get does then. An error of the same
// kind may be about what the sandbox belongs to, such as its session: then it still runs.
func Gone[T any](err error, get func(turnstone.SandboxID) (T, error), id turnstone.SandboxID) bool {
	if turnstone.KindOf(err) != turnstone.KindNotFound {
		return false
	}
	_, err = get(id)
	return turnstone.KindOf(err) == turnstone.KindNotFound
}
