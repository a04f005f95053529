package document

import (
	"fmt"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// MaxRetry bounds retry:.
const MaxRetry = 10

// readRetry reads how often a turn starts again after its executor was lost.
func (p *docParser) readRetry(n *yaml.Node) {
	count, err := strconv.Atoi(n.Value)
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!int" || err != nil || count < 0 || count > MaxRetry {
		p.errorNode(n, fmt.Sprintf("retry is not a number from 0 to %d", MaxRetry),
			"write retry: 1, so that the turn starts again once if its machine is lost")
		return
	}
	p.doc.Front.Retry = count
}
