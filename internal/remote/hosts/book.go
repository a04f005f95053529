package hosts

import (
	"encoding/json"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/remote"
)

// nodes is the folder of the books of servers.
const nodes = "nodes"

// A book remembers the nodes of the server at an address in a file of the user. What is wrong with
// the file costs a round trip, so no error of it is told.
type book struct {
	store   Store
	address remote.Address
}

func (b book) path() string {
	return b.store.Dir.Path(folder, nodes, addressName(b.address)+".json")
}

// addressName returns the name that files about the server at an address have.
func addressName(a remote.Address) string {
	return turnstone.DigestBytes([]byte(a.String())).Hex()[:16]
}

// Nodes implements remote.NodeBook.
func (b book) Nodes() []remote.NodeKey {
	text, err := readOwn(b.path())
	var all []remote.NodeKey
	if err != nil || json.Unmarshal([]byte(text), &all) != nil {
		return nil
	}
	return all
}

// Remember implements remote.NodeBook.
func (b book) Remember(all []remote.NodeKey) {
	text, err := json.Marshal(all)
	if err != nil {
		return
	}
	if _, err := b.store.Dir.MkdirAll(folder, nodes); err == nil {
		_ = filestamp.WriteFile(b.path(), append(text, '\n'), 0o600)
	}
}
