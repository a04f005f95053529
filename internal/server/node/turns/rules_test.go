package turns

import (
	"testing"

	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/wire"
)

// TestEmptyAllow checks that a document which allows no host still allows none with the rules of its
// caller, whose empty list of allowed hosts is not in the message.
func TestEmptyAllow(t *testing.T) {
	for text, only := range map[string]bool{"network: {allow: []}": true, "network: on": false} {
		doc, err := document.Parse("a.md", []byte("---\n"+text+"\n---\n```bash\ntrue\n```\n"))
		if err != nil {
			t.Fatal(err)
		}
		req, _, err := request(doc, Ticket{}, &wire.TurnSettings{Rules: &wire.TurnNetworkRules{
			Deny: []string{"10.0.0.0/8"}}})
		if err != nil || req.Document.Front.NetworkRules.HasAllow != only {
			t.Errorf("%s: %+v %v", text, req.Document.Front.NetworkRules, err)
		}
	}
}
