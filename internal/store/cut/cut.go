// Package cut finds where a large content is cut into chunks.
package cut

import (
	chunkers "github.com/PlakarKorp/go-cdc-chunkers"
	"github.com/PlakarKorp/go-cdc-chunkers/chunkers/jc"

	"turnstone.dev/turnstone/internal/store/seal"
)

// The sizes of chunks. They and the cutter are part of the format: other sizes would give the same
// content another list.
const (
	Min, Normal, Max = 64 << 10, 256 << 10, 1 << 20
)

// A Cutter finds the cuts of a content: jump-based chunking (Jin et al., IEEE TPDS 2023), which
// examines only a third of the bytes.
type Cutter struct {
	algorithm jc.JC
	options   chunkers.ChunkerOpts
}

// New returns the cutter of a domain; nil: the public one. Each domain has a table of its own, so that
// the sizes of a content's chunks do not show the content. The library would keep its tables of keys
// forever.
func New(domain *seal.Domain) (*Cutter, error) {
	c := &Cutter{options: chunkers.ChunkerOpts{MinSize: Min, NormalSize: Normal, MaxSize: Max}}
	err := c.algorithm.Setup(&c.options)
	if err == nil && domain != nil {
		c.algorithm.G, err = domain.Gear()
	}
	return c, err
}

// Next returns the size of the first chunk of p, which has at least Max bytes or is the rest of the
// content.
func (c *Cutter) Next(p []byte) int { return c.algorithm.Algorithm(&c.options, p, len(p)) }
