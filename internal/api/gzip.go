package api

import (
	"compress/gzip"
	"io"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
)

// Compression is the name of the compression that the API has. Gunzip and Gzip are its parts.
const Compression = "gzip"

// Gunzip returns a constructor of decompressors whose messages have at most most bytes. What follows
// is an error: package connect alone would decompress the rest to learn its size, which costs
// seconds of CPU for a message that is small when it is sent.
func Gunzip(most int64) func() connect.Decompressor {
	return func() connect.Decompressor { return &gunzip{most: most} }
}

// Gzip returns a compressor.
func Gzip() connect.Compressor { return gzip.NewWriter(io.Discard) }

type gunzip struct {
	gzip.Reader
	most, left int64
}

// Read implements io.Reader. One byte beyond the bound is read, by which package connect notices a
// message that is too large.
func (g *gunzip) Read(p []byte) (int, error) {
	if g.left <= 0 {
		return 0, turnstone.Errorf("api.read", turnstone.KindExhausted, "message",
			"has more than %d bytes after decompression", g.most)
	}
	n, err := g.Reader.Read(p[:min(int64(len(p)), g.left)])
	g.left -= int64(n)
	return n, err
}

// Reset implements connect.Decompressor.
func (g *gunzip) Reset(r io.Reader) error {
	g.left = g.most + 1
	return g.Reader.Reset(r)
}
