package document_test

import (
	"testing"

	"turnstone.dev/turnstone/document"
)

func TestRetry(t *testing.T) {
	for text, want := range map[string]int{"0": 0, "1": 1, "10": 10, "11": -1, "-1": -1, "yes": -1,
		"'1'": -1, "1.5": -1, "[1]": -1, "{a: 1}": -1, "''": -1, "99999999999999999999": -1} {
		doc, err := document.Parse("a.md", []byte("---\nretry: "+text+"\n---\n```bash\ntrue\n```\n"))
		if (err != nil) != (want < 0) || err == nil && doc.Front.Retry != want {
			t.Errorf("retry: %s: %v", text, err)
		}
	}
}
