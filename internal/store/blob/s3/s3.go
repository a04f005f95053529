// Package s3 stores blobs in a bucket of S3 or of a compatible server.
package s3

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/blob"
	"turnstone.dev/turnstone/internal/store/blob/s3/pace"
)

// Options locate the blobs. They contain no credentials, which come from AWS_ACCESS_KEY_ID and
// AWS_SECRET_ACCESS_KEY, from ~/.aws/credentials (or AWS_SHARED_CREDENTIALS_FILE and AWS_PROFILE),
// or from the machine's role.
type Options struct {
	Endpoint string // host, or host:port
	Insecure bool   // plain HTTP
	Region   string
	Bucket   string
	Prefix   string // prefix of all names, without "/" at its ends; may be empty
	Pace     pace.Options
}

// ParseURL parses s3://BUCKET/PREFIX. The endpoint is AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, or
// AWS's own; the region is AWS_REGION or AWS_DEFAULT_REGION.
func ParseURL(s string) (Options, error) {
	bad := func(err error) (Options, error) {
		return Options{}, turnstone.NewError("s3.parse", turnstone.KindInvalid, s, err).
			WithHint("write s3://BUCKET/PREFIX, and set AWS_ENDPOINT_URL_S3 for an endpoint " +
				"other than AWS")
	}
	u, err := url.Parse(s)
	if err != nil {
		return bad(errors.New("not a URL"))
	}
	if u.Scheme != "s3" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return bad(errors.New("not the URL of a bucket"))
	}
	o := Options{Bucket: u.Host, Prefix: strings.Trim(u.Path, "/"),
		Region: cmp.Or(os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION"))}
	if o.Prefix != "" {
		if err := blob.CheckName("s3.parse", o.Prefix); err != nil {
			return bad(err)
		}
	}
	o.Endpoint = "s3.amazonaws.com"
	e := cmp.Or(os.Getenv("AWS_ENDPOINT_URL_S3"), os.Getenv("AWS_ENDPOINT_URL"))
	if e != "" {
		u, err := url.Parse(e)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" ||
			strings.Trim(u.Path, "/") != "" {
			return bad(fmt.Errorf("the endpoint %q is not http://HOST or https://HOST", e))
		}
		o.Endpoint, o.Insecure = u.Host, u.Scheme == "http"
	}
	return o, nil
}

// A Store is a bucket, or the names with a prefix in it. Requests with transient failures are
// repeated.
type Store struct {
	client *minio.Core
	server *pace.Transport
	bucket string
	prefix string // with a trailing "/", or empty

	settling sync.Mutex
	settles  time.Time // the begin of the last Settle
}

var (
	_ blob.Store = (*Store)(nil)
	_ blob.Late  = (*Store)(nil)
)

// partSize is the size of a request, and of the buffer for a reader that cannot be read again. Four
// parts are sent concurrently.
const partSize = 16 << 20

// Open returns a store for an existing bucket. It sends no request.
func Open(o Options) (*Store, error) {
	chain := credentials.NewChainCredentials([]credentials.Provider{
		&credentials.EnvAWS{}, &credentials.FileAWSCredentials{},
		&credentials.IAM{Client: &http.Client{Timeout: 5 * time.Second}},
	})
	base, err := minio.DefaultTransport(!o.Insecure)
	if err != nil {
		return nil, turnstone.NewError("blob.open", turnstone.KindUnavailable, o.Endpoint, err)
	}
	server := pace.New(base, o.Pace)
	c, err := minio.NewCore(o.Endpoint,
		&minio.Options{Creds: chain, Secure: !o.Insecure, Region: o.Region, Transport: server})
	if err != nil {
		return nil, turnstone.NewError("blob.open", turnstone.KindInvalid, o.Endpoint, err).
			WithHint("write the endpoint as a host, or HOST:PORT")
	}
	s := &Store{client: c, server: server, bucket: o.Bucket}
	if o.Prefix != "" {
		s.prefix = o.Prefix + "/"
	}
	return s, nil
}

// Put implements blob.Store. It asks the server for the blob before it returns: an answer alone does
// not make a blob durable.
func (s *Store) Put(ctx context.Context, name string, r io.Reader, size int64) error {
	const op = "blob.put"
	if err := blob.Begin(ctx, op, name); err != nil {
		return err
	}
	r, err := again(ctx, r, size)
	if err != nil {
		return blob.Error(op, name, err)
	}
	ctx, end := pace.Begin(ctx)
	defer end()
	ra, repeats := r.(readSeekerAt)
	for try := 1; ; try++ {
		if repeats {
			_, err = s.client.Client.PutObject(ctx, s.bucket, s.prefix+name,
				io.NewSectionReader(ra, 0, size), size, putOptions())
		} else {
			source := &watched{r: r}
			_, err = s.client.Client.PutObject(ctx, s.bucket, s.prefix+name, source, size,
				putOptions())
			if source.err != nil { // the library's error does not contain the cause
				err = source.err
			}
		}
		if err != nil {
			return s.fail(ctx, op, name, err)
		}
		err = s.confirm(ctx, op, name, size)
		if err == nil || !errors.Is(err, errNotStored) || !repeats || try == maxPuts {
			return err
		}
	}
}

func putOptions() minio.PutObjectOptions {
	return minio.PutObjectOptions{PartSize: partSize, ContentType: "application/octet-stream"}
}

// A readSeekerAt supports repeated and concurrent reads.
type readSeekerAt interface {
	io.ReadSeeker
	io.ReaderAt
}

// again returns a reader of exactly size bytes that supports repeated reads if the data is small or
// r supports them. For other large readers, a wrong size is detected only at the end.
func again(ctx context.Context, r io.Reader, size int64) (io.Reader, error) {
	if size < 0 {
		return nil, wrongSize(size)
	}
	if ra, ok := r.(readSeekerAt); ok {
		at, err := ra.Seek(0, io.SeekCurrent)
		if err != nil {
			return nil, err
		}
		end, err := ra.Seek(0, io.SeekEnd)
		if err != nil {
			return nil, err
		}
		if end-at != size {
			return nil, wrongSize(size)
		}
		return io.NewSectionReader(ra, at, size), nil
	}
	if size > partSize {
		return &exact{ctx: ctx, r: r, left: size, size: size}, nil
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(&exact{ctx: ctx, r: r, left: size, size: size}, b); err != nil {
		return nil, err
	}
	if size == 0 {
		if n, _ := io.ReadFull(r, make([]byte, 1)); n > 0 {
			return nil, wrongSize(size)
		}
	}
	return bytes.NewReader(b), nil
}

func wrongSize(size int64) error {
	return turnstone.Errorf("blob.put", turnstone.KindInvalid, "",
		"the data does not have the %d bytes announced", size)
}

// exact reads a reader that must have size bytes. It holds the last bytes back until it has seen
// the end, so that a longer reader never becomes a blob.
type exact struct {
	ctx        context.Context
	r          io.Reader
	left, size int64
}

func (e *exact) Read(p []byte) (int, error) {
	if e.left == 0 {
		return 0, io.EOF
	}
	if err := e.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := e.r.Read(p[:min(int64(len(p)), e.left)])
	e.left -= int64(n)
	if err == io.EOF && e.left > 0 {
		return 0, wrongSize(e.size)
	}
	if err != nil && err != io.EOF {
		return 0, err
	}
	if e.left == 0 {
		var more [1]byte
		if k, err := io.ReadFull(e.r, more[:]); k > 0 {
			return 0, wrongSize(e.size)
		} else if err != io.EOF {
			return 0, err
		}
	}
	return n, nil
}

// watched remembers a reader's error.
type watched struct {
	r   io.Reader
	err error
}

func (w *watched) Read(p []byte) (int, error) {
	n, err := w.r.Read(p)
	if err != nil && err != io.EOF {
		w.err = err
	}
	return n, err
}

// Get implements blob.Store.
func (s *Store) Get(ctx context.Context, name string, off, n int64) (io.ReadCloser, error) {
	const op = "blob.get"
	if err := blob.Begin(ctx, op, name); err != nil {
		return nil, err
	}
	if off < 0 || n > math.MaxInt64-off {
		_, err := blob.Range(op, name, off, n, 0)
		return nil, err
	}
	if n == 0 { // HTTP has no empty range
		return s.empty(ctx, op, name, off)
	}
	ctx, end := pace.Begin(ctx)
	rd, err := s.get(ctx, op, name, off, n, end)
	if err != nil {
		end()
	}
	return rd, err
}

// get opens a range that is not empty; its reader calls end.
func (s *Store) get(ctx context.Context, op turnstone.Op, name string, off, n int64,
	end context.CancelFunc) (io.ReadCloser, error) {
	var rc io.ReadCloser
	var length int64
	err := s.present(ctx, func() (err error) {
		rc, length, err = s.request(ctx, op, name, off, n)
		return err
	})
	code := minio.ToErrorResponse(err).StatusCode
	if code == http.StatusRequestedRangeNotSatisfiable {
		if n > 0 {
			size, serr := s.size(ctx, op, name)
			if serr != nil {
				return nil, serr
			}
			_, err = blob.Range(op, name, off, n, size)
			return nil, blob.Error(op, name, err)
		}
		rc, err = s.empty(ctx, op, name, off)
		end()
		return rc, err
	}
	if err != nil {
		return nil, s.fail(ctx, op, name, err)
	}
	return &reader{s: s, ctx: ctx, end: end, name: name, rc: rc, off: off, left: length}, nil
}

// request requests a range and verifies that the answer is the complete range.
func (s *Store) request(ctx context.Context, op turnstone.Op, name string,
	off, n int64) (io.ReadCloser, int64, error) {
	var o minio.GetObjectOptions
	var err error
	switch {
	case n > 0:
		err = o.SetRange(off, off+n-1)
	case off > 0:
		err = o.SetRange(off, 0)
	}
	if err != nil {
		return nil, 0, err
	}
	rc, info, header, err := s.client.GetObject(ctx, s.bucket, s.prefix+name, o)
	if err != nil {
		return nil, 0, err
	}
	size := info.Size
	if part, total, ok := strings.Cut(header.Get("Content-Range"), "/"); ok {
		size, err = strconv.ParseInt(total, 10, 64)
		if from, _, _ := strings.Cut(part, "-"); from != fmt.Sprintf("bytes %d", off) {
			err = fmt.Errorf("the server sent another range: %q", header.Get("Content-Range"))
		}
	} else if off > 0 || n >= 0 && n < size {
		err = errors.New("the server sent the whole blob instead of a range")
	}
	if err == nil {
		n, err = blob.Range(op, name, off, n, size)
	}
	if err != nil {
		_ = rc.Close()
		return nil, 0, err
	}
	return rc, n, nil
}

// empty is Get of zero bytes at an offset that must be inside the blob or at its end.
func (s *Store) empty(ctx context.Context, op turnstone.Op, name string,
	off int64) (io.ReadCloser, error) {
	size, err := s.size(ctx, op, name)
	if err == nil {
		_, err = blob.Range(op, name, off, 0, size)
	}
	if err != nil {
		return nil, err
	}
	return io.NopCloser(bytes.NewReader(nil)), nil
}

func (s *Store) size(ctx context.Context, op turnstone.Op, name string) (size int64, err error) {
	ctx, end := pace.Begin(ctx)
	defer end()
	err = s.present(ctx, func() error {
		info, err := s.client.StatObject(ctx, s.bucket, s.prefix+name, minio.StatObjectOptions{})
		size = info.Size
		return err
	})
	return size, s.fail(ctx, op, name, err)
}

// maxResumes bounds how often a Get requests the rest after a broken connection.
const maxResumes = 3

// A reader reads the range of a blob.
type reader struct {
	s         *Store
	ctx       context.Context
	end       context.CancelFunc
	name      string
	rc        io.ReadCloser
	off, left int64
	resumes   int
}

func (r *reader) Read(p []byte) (int, error) {
	if r.left == 0 {
		return 0, io.EOF
	}
	for {
		if err := r.ctx.Err(); err != nil {
			return 0, err
		}
		n, err := r.rc.Read(p[:min(int64(len(p)), r.left)])
		r.off += int64(n)
		r.left -= int64(n)
		if n > 0 || err == nil {
			return n, nil
		}
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		if r.resumes++; r.resumes > maxResumes || r.ctx.Err() != nil {
			return 0, err
		}
		rc, _, rerr := r.s.request(r.ctx, "blob.get", r.name, r.off, r.left)
		if rerr != nil {
			return 0, err
		}
		_ = r.rc.Close()
		r.rc = rc
	}
}

func (r *reader) Close() error {
	defer r.end()
	return r.rc.Close()
}

// List implements blob.Store.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[blob.Info, error] {
	const op = "blob.list"
	return func(yield func(blob.Info, error) bool) {
		if prefix != "" && blob.CheckName(op, strings.TrimSuffix(prefix, "/")) != nil {
			return // no name begins with this prefix
		}
		// A caller that stops early must not leave a request behind.
		short, cancel := pace.Begin(ctx)
		defer cancel()
		if err := ctx.Err(); err != nil {
			yield(blob.Info{}, blob.Error(op, prefix, err))
			return
		}
		for o := range s.client.ListObjectsIter(short, s.bucket,
			minio.ListObjectsOptions{Prefix: s.prefix + prefix, Recursive: true}) {
			if o.Err != nil {
				yield(blob.Info{}, s.fail(short, op, prefix, o.Err))
				return
			}
			name, ok := strings.CutPrefix(o.Key, s.prefix)
			if !ok || blob.CheckName(op, name) != nil {
				continue // not a blob of this store
			}
			if !yield(blob.Info{Name: name, Size: o.Size, Modified: o.LastModified}, nil) {
				return
			}
		}
		if err := short.Err(); err != nil { // the sequence may have ended early
			yield(blob.Info{}, s.fail(short, op, prefix, err))
		}
	}
}

// Remove implements blob.Store.
func (s *Store) Remove(ctx context.Context, name string) error {
	const op = "blob.remove"
	if err := blob.Begin(ctx, op, name); err != nil {
		return err
	}
	ctx, end := pace.Begin(ctx)
	defer end()
	err := s.fail(ctx, op, name, s.client.RemoveObject(ctx, s.bucket, s.prefix+name,
		minio.RemoveObjectOptions{}))
	if turnstone.KindOf(err) == turnstone.KindNotFound &&
		minio.ToErrorResponse(errors.Unwrap(err)).Code != minio.NoSuchBucket {
		return nil
	}
	return err
}

// Check reports whether the bucket is usable, for its setup.
func (s *Store) Check(ctx context.Context) error {
	const op = "blob.check"
	ctx, end := pace.Begin(ctx)
	defer end()
	ok, err := s.client.BucketExists(ctx, s.bucket)
	if err == nil && !ok {
		err = minio.ErrorResponse{Code: minio.NoSuchBucket, Message: "the bucket does not exist",
			StatusCode: http.StatusNotFound}
	}
	return s.fail(ctx, op, s.bucket, err)
}
