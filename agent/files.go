package agent

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/archive"
	wire "turnstone.dev/turnstone/oldwire"
)

// put is FileSystem.put: it unpacks the tar stream that follows.
func (a *Agent) put(ctx context.Context, c *wire.Call) error {
	var p wire.PutParams
	if err := c.Decode(&p); err != nil {
		return err
	}
	if !filepath.IsAbs(p.Dest) {
		return invalid(c.Method, p.Dest, "the destination is not an absolute path")
	}
	dest := a.path(p.Dest)
	if p.Dest[len(p.Dest)-1] == '/' {
		dest += "/"
	}
	// The host's own files: links are kept, and the disk is the limit.
	err := archive.Unpack(ctx, c, dest, archive.Limits{Links: true, Entries: 1 << 40, Bytes: 1 << 60})
	if err != nil {
		return err
	}
	return c.Reply(nil)
}

// get is FileSystem.get: it answers, then packs the path as a tar stream. A
// stream without a tar's end says that packing failed.
func (a *Agent) get(ctx context.Context, c *wire.Call) error {
	var p wire.GetParams
	if err := c.Decode(&p); err != nil {
		return err
	}
	if !filepath.IsAbs(p.Path) {
		return invalid(c.Method, p.Path, "the path is not absolute")
	}
	if _, err := os.Stat(a.path(p.Path)); err != nil {
		kind := turnstone.Unavailable
		if errors.Is(err, os.ErrNotExist) {
			kind = turnstone.NotFound
		}
		return &turnstone.Error{Op: c.Method, Kind: kind, Subject: p.Path, Err: rootCause(err),
			Hint: "check the path, and that a step has made it"}
	}
	if err := c.Reply(nil); err != nil {
		return nil
	}
	_ = archive.Pack(ctx, c, a.path(p.Path), filepath.Base(p.Path))
	return nil
}
