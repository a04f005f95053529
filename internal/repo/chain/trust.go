package chain

import (
	"turnstone.dev/turnstone/internal/proof/key"
	"turnstone.dev/turnstone/internal/statedir"
)

// Ring returns the keys' files of the state directory dir.
func Ring(dir *statedir.Dir, ask func(string) ([]byte, error)) key.Ring {
	return key.Ring{Dir: dir, Ask: ask}
}
