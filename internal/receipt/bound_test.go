package receipt

import (
	"testing"

	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/guest/trace"
	"turnstone.dev/turnstone/wire"
)

// TestHostileTable checks that a table has one row for each command, and few exit codes in a row,
// whatever a sandbox reports of its step.
func TestHostileTable(t *testing.T) {
	doc, err := document.Parse("doc.md", []byte("```bash\ntrue\n```\n"))
	if err != nil {
		t.Fatal(err)
	}
	records := make([]wire.ShellRecord, trace.MaxRecords)
	code := int64(3)
	for i := range records {
		records[i] = wire.ShellRecord{ID: int64(i), Parent: 0, Kind: "simple", Text: "x", Line: 1,
			Site: 1, Flags: []string{"pipeIn"}, ExitCode: &code}
	}
	records[0] = wire.ShellRecord{ID: 0, Parent: -1, Kind: "pipeline", Site: 0}
	end := &wire.StepEnd{Path: "step.sh"}
	for range trace.MaxSites {
		end.Sites = append(end.Sites, wire.ShellSite{ID: 0, Kind: "pipeline", Text: "x"})
	}
	out := newCapture("", "", "", nil)
	out.finish()
	s := parseScripts(doc, nil)
	c := s.analyse(doc.Steps[0], end, records, out, "/", true)
	if len(c.table) != 1 || len(c.table[0].ExitCodes) != maxExits || c.table[0].ExitCodes[0] != 3 {
		t.Errorf("%d rows, want one with %d exit codes", len(c.table), maxExits)
	}
	if c = s.analyse(doc.Steps[0], end, records, out, "/", false); c.table != nil ||
		len(c.reports) != trace.MaxRecords {
		t.Errorf("a table of %d rows that nobody asked for; %d reports", len(c.table),
			len(c.reports))
	}
}
