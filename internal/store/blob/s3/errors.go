package s3

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/minio/minio-go/v7"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/blob"
	"turnstone.dev/turnstone/internal/store/blob/s3/pace"
)

// full has the codes of servers whose quota or disk is full. They answer with various statuses: Ceph
// with 403, MinIO with 400 and 507.
var full = map[string]bool{"QuotaExceeded": true, "InsufficientStorage": true,
	"XMinioStorageFull": true, "XMinioAdminBucketQuotaExceeded": true}

// fail returns err as a typed error.
func (s *Store) fail(ctx context.Context, op turnstone.Op, name string, err error) error {
	if err == nil {
		return nil
	}
	if away := pace.Away(ctx); away != nil {
		return turnstone.NewError(op, turnstone.KindUnavailable, s.bucket+"/"+s.prefix+name, away).
			WithHint("check the bucket's server (AWS_ENDPOINT_URL_S3, or else AWS's own), and try " +
				"again later")
	}
	if ctx.Err() != nil {
		return blob.Error(op, name, ctx.Err())
	}
	var typed *turnstone.Error
	if errors.As(err, &typed) {
		return blob.Error(op, name, err)
	}
	e := turnstone.NewError(op, turnstone.KindUnavailable, s.bucket+"/"+s.prefix+name, err)
	switch r := minio.ToErrorResponse(err); {
	case r.Code == minio.NoSuchBucket:
		e.Kind, e.Hint = turnstone.KindNotFound, "create the bucket first"
	case r.StatusCode == http.StatusNotFound, r.Code == minio.NoSuchKey:
		e.Kind = turnstone.KindNotFound
	case r.StatusCode == http.StatusInsufficientStorage, full[r.Code]:
		e.Kind, e.Hint = turnstone.KindExhausted, "free space in the bucket, such as with turn gc, "+
			"or raise its quota"
	case r.StatusCode == http.StatusTooManyRequests, r.StatusCode == http.StatusServiceUnavailable:
		e.Hint = "the bucket's server is busy: try again later"
	case r.Code == "RequestTimeTooSkewed", r.StatusCode == http.StatusForbidden && s.skewed():
		e.Hint = s.clocks()
	case r.StatusCode == http.StatusForbidden, r.StatusCode == http.StatusUnauthorized:
		e.Hint = "check the credentials (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or " +
			"~/.aws/credentials)"
	case r.StatusCode == 0:
		e.Hint = "check that the endpoint is reachable: AWS_ENDPOINT_URL_S3, or else AWS's own"
	}
	return e
}

// Refused reports whether the server refused a request of this error: because of its credentials, its time
// or what they may do.
func Refused(err error) bool {
	var r minio.ErrorResponse
	return errors.As(err, &r) && (r.StatusCode == http.StatusForbidden || r.StatusCode == http.StatusUnauthorized)
}

// mostSkew is how much the clocks may differ: signatures of requests have a time, and AWS accepts 15
// minutes. Answers to HEAD have no code that says so.
const mostSkew = 5 * time.Minute

func (s *Store) skewed() bool { return s.server.Skew().Abs() > mostSkew }

// clocks is the hint for a request whose time the server does not accept.
func (s *Store) clocks() string {
	const hint = "set this machine's clock"
	switch d := s.server.Skew(); {
	case d > 0:
		return hint + ": it is " + d.String() + " behind that of the bucket's server"
	case d < 0:
		return hint + ": it is " + (-d).String() + " ahead of that of the bucket's server"
	}
	return hint + ", or that of the bucket's server"
}
