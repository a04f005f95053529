package sandbox

import (
	"context"
	"io"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/statedir"
)

// UpperIsExport is the result of Pause for a machine whose Disk is an export.
const UpperIsExport = "export"

// maxHeaders bounds an export's data other than the files' content: headers, in the format of
// upper.
const maxHeaders = 4 << 30

// spoolExport stops s's processes and writes the agent's export to a file without a name. The
// caller holds s.live.
func (s *Sandbox) spoolExport(ctx context.Context) error {
	f, err := statedir.Unnamed(s.spoolDir)
	if err != nil {
		return err
	}
	err = s.Client().ExportHeld(ctx, func(in io.Reader) error {
		limit := int64(s.source.Shape.Disk) + maxHeaders
		n, err := io.Copy(f, io.LimitReader(in, limit+1))
		if err == nil && n > limit {
			err = turnstone.Errorf("executor.live", turnstone.KindExhausted, string(s.ID()),
				"its agent exports more than its disk holds")
		}
		return err
	})
	if err != nil {
		_ = f.Close()
		return s.CauseOf(err)
	}
	s.exported = f
	return nil
}

// dropExport releases the export. The caller holds s.live.
func (s *Sandbox) dropExport() {
	if s.exported != nil {
		_ = s.exported.Close()
		s.exported = nil
	}
}
