package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"sync"

	"turnstone.dev/turnstone"
)

// A sealed file is a header, and the content in chunks of 64 KiB, each sealed with AES-256-GCM: the
// STREAM construction (Hoang et al., CRYPTO 2015), as age uses it. The nonce of a chunk is its
// number in 11 bytes, big-endian, and one byte that is 1 in the last chunk and 0 in others. The last
// chunk may be shorter than others; it is empty only if the file is. The key of a file is
// HMAC-SHA-256 of the header and the context with the domain's stream key.
//
//	header  magic 8, domain 16, random 32
const (
	streamMagic  = "TURNSEA1"
	streamRandom = 32
	headerSize   = len(streamMagic) + len(ID{}) + streamRandom
	chunkSize    = 64 << 10
	sealedChunk  = chunkSize + tagSize
)

// StreamSize returns the size of the sealed form of a file of n bytes.
func StreamSize(n int64) int64 {
	return int64(headerSize) + n + max((n+chunkSize-1)/chunkSize, 1)*tagSize
}

// fileAEAD returns the cipher of the file with the header.
func (d *Domain) fileAEAD(header []byte, context string) (cipher.AEAD, error) {
	var key [32]byte
	if err := d.use(func(k *keys) { key = mac(&k.stream, header, []byte(context)) }); err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key[:])
	clear(key[:])
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// readHeader returns the cipher of a file from its header.
func (d *Domain) readHeader(header []byte, context string) (cipher.AEAD, error) {
	const op = "seal.stream"
	if string(header[:len(streamMagic)]) != streamMagic {
		return nil, turnstone.Errorf(op, turnstone.KindIntegrity, "", "not a sealed file")
	}
	if id := ID(header[len(streamMagic):][:len(ID{})]); id != d.id {
		return nil, Locked(op, id)
	}
	return d.fileAEAD(header, context)
}

func nonce(n uint64, last bool) []byte {
	b := make([]byte, nonceSize)
	binary.BigEndian.PutUint64(b[3:], n)
	if last {
		b[nonceSize-1] = 1
	}
	return b
}

// NewWriter returns a writer that seals a file to w. The file is complete after Close, which does
// not close w. context says what the file is; a reader needs the same context.
func (d *Domain) NewWriter(w io.Writer, context string) (io.WriteCloser, error) {
	header := append(append(make([]byte, 0, headerSize), streamMagic...), d.id[:]...)
	header = header[:headerSize]
	_, _ = rand.Read(header[headerSize-streamRandom:]) // documented never to fail
	aead, err := d.fileAEAD(header, context)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(header); err != nil {
		return nil, err
	}
	return &writer{w: w, aead: aead, plain: make([]byte, 0, chunkSize),
		sealed: make([]byte, 0, sealedChunk)}, nil
}

type writer struct {
	w             io.Writer
	aead          cipher.AEAD
	plain, sealed []byte
	n             uint64
	err           error
}

// Write implements io.Writer. A full chunk waits until it is known whether it is the last one.
func (w *writer) Write(p []byte) (n int, err error) {
	for len(p) > 0 && w.err == nil {
		if len(w.plain) == chunkSize {
			if w.err = w.flush(false); w.err != nil {
				break
			}
		}
		k := copy(w.plain[len(w.plain):chunkSize], p)
		w.plain = w.plain[:len(w.plain)+k]
		n, p = n+k, p[k:]
	}
	return n, w.err
}

func (w *writer) flush(last bool) error {
	w.sealed = w.aead.Seal(w.sealed[:0], nonce(w.n, last), w.plain, nil)
	w.plain = w.plain[:0]
	w.n++
	_, err := w.w.Write(w.sealed)
	return err
}

var errClosed = errors.New("the sealed file is complete")

// Close writes the last chunk.
func (w *writer) Close() error {
	if w.err != nil {
		if w.err == errClosed {
			return nil
		}
		return w.err
	}
	err := w.flush(true)
	w.err = errClosed
	if err != nil {
		w.err = err
	}
	clear(w.plain[:cap(w.plain)])
	return err
}

// NewReader returns a reader of the file that r has in its sealed form. Nothing is returned before
// it is verified, and io.EOF only at the end that the writer has set: a truncated or changed file is
// an error of kind Integrity. A file of another domain is an error of kind Unavailable.
func (d *Domain) NewReader(r io.Reader, context string) (io.Reader, error) {
	header := make([]byte, headerSize)
	if _, err := io.ReadFull(r, header); err != nil {
		return nil, streamError(err)
	}
	aead, err := d.readHeader(header, context)
	if err != nil {
		return nil, err
	}
	return &reader{r: r, aead: aead, buf: make([]byte, sealedChunk+1),
		chunk: make([]byte, 0, chunkSize)}, nil
}

// streamError returns the error of a read: the end of the file is damage.
func streamError(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return turnstone.Errorf("seal.stream", turnstone.KindIntegrity, "",
			"the sealed file is truncated")
	}
	return err
}

type reader struct {
	r     io.Reader
	aead  cipher.AEAD
	buf   []byte // a sealed chunk, and the first byte of the next
	more  int    // 1: buf begins with that byte
	chunk []byte
	plain []byte // the rest of chunk
	n     uint64
	err   error
}

// Read implements io.Reader.
func (r *reader) Read(p []byte) (int, error) {
	for len(r.plain) == 0 && r.err == nil {
		r.err = r.next()
	}
	if len(r.plain) == 0 {
		return 0, r.err
	}
	n := copy(p, r.plain)
	r.plain = r.plain[n:]
	return n, nil
}

// next opens the next chunk. It returns io.EOF with the last one.
func (r *reader) next() error {
	k, err := io.ReadFull(r.r, r.buf[r.more:])
	k += r.more
	last := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
	if err != nil && !last {
		return err
	}
	r.plain, err = openChunk(r.aead, r.chunk[:0], r.buf[:min(k, sealedChunk)], r.n, last)
	if err != nil {
		return err
	}
	r.n++
	if last {
		return io.EOF
	}
	r.buf[0], r.more = r.buf[sealedChunk], 1
	return nil
}

// openChunk appends the plaintext of chunk n to dst.
func openChunk(aead cipher.AEAD, dst, sealed []byte, n uint64, last bool) ([]byte, error) {
	if len(sealed) < tagSize || len(sealed) == tagSize && n > 0 ||
		!last && len(sealed) != sealedChunk {
		return nil, streamError(io.ErrUnexpectedEOF)
	}
	p, err := aead.Open(dst, nonce(n, last), sealed, nil)
	if err != nil {
		return nil, wrong("seal.stream", "the sealed file")
	}
	return p, nil
}

// A File reads a sealed file at any offset. Its methods are safe for concurrent use.
type File struct {
	src  io.ReaderAt
	aead cipher.AEAD
	size int64 // of the plaintext
	last int64 // number of the last chunk

	mu    sync.Mutex
	n     int64 // number of the chunk in plain; -1: none
	plain []byte
	buf   []byte
}

// OpenFile opens the sealed file src of size bytes. It verifies the last chunk, and so the size.
// Its errors are those of NewReader.
func (d *Domain) OpenFile(src io.ReaderAt, size int64, context string) (*File, error) {
	header := make([]byte, headerSize)
	if size < int64(headerSize+tagSize) {
		return nil, streamError(io.ErrUnexpectedEOF)
	}
	if _, err := src.ReadAt(header, 0); err != nil {
		return nil, streamError(err)
	}
	aead, err := d.readHeader(header, context)
	if err != nil {
		return nil, err
	}
	body := size - int64(headerSize)
	chunks := (body + sealedChunk - 1) / sealedChunk
	f := &File{src: src, aead: aead, size: body - chunks*tagSize, last: chunks - 1, n: -1,
		buf: make([]byte, sealedChunk)}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.load(f.last); err != nil {
		return nil, err
	}
	return f, nil
}

// Size returns the size of the plaintext in bytes.
func (f *File) Size() int64 { return f.size }

// load opens chunk n, with the lock held.
func (f *File) load(n int64) error {
	if f.n == n {
		return nil
	}
	at := int64(headerSize) + n*sealedChunk
	k := int64(sealedChunk)
	if n == f.last {
		k = f.size + int64(headerSize) + (f.last+1)*tagSize - at
	}
	if k < tagSize {
		return streamError(io.ErrUnexpectedEOF)
	}
	f.n = -1
	if m, err := f.src.ReadAt(f.buf[:k], at); err != nil && (err != io.EOF || int64(m) < k) {
		return streamError(err)
	}
	var err error
	if f.plain, err = openChunk(f.aead, f.buf[:0], f.buf[:k], uint64(n), n == f.last); err == nil {
		f.n = n
	}
	return err
}

// ReadAt implements io.ReaderAt.
func (f *File) ReadAt(p []byte, off int64) (n int, err error) {
	if off < 0 {
		return 0, turnstone.Errorf("seal.stream", turnstone.KindInvalid, "",
			"a negative offset: %d", off)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for n < len(p) {
		if off >= f.size {
			return n, io.EOF
		}
		if err := f.load(off / chunkSize); err != nil {
			return n, err
		}
		k := copy(p[n:], f.plain[off%chunkSize:])
		n, off = n+k, off+int64(k)
	}
	return n, nil
}
