package bucket_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"turnstone.dev/turnstone/internal/server/node/bucket"
	"turnstone.dev/turnstone/internal/store/blob/s3/s3test"
)

// TestAway: a bucket that fails at the start is away until it answers; one that answered is away only
// after failures for a minute. The log has a line at each edge, and no other.
func TestAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		var fails atomic.Bool
		fails.Store(true)
		w := bucket.New(func(context.Context) error {
			if fails.Load() {
				return errors.New("refused")
			}
			return nil
		}, slog.New(slog.NewTextHandler(&log, nil)))
		if w.Away() == nil {
			t.Error("it is here before it was asked")
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); w.Run(ctx) }()
		after := func(d time.Duration, fail, away bool, lines int) {
			t.Helper()
			fails.Store(fail)
			time.Sleep(d)
			synctest.Wait()
			if is := w.Away() != nil; is != away || (w.Reason() != "") != away {
				t.Errorf("away: %v, %q", is, w.Reason())
			}
			if n := strings.Count(log.String(), "\n"); n != lines {
				t.Errorf("%d lines, not %d:\n%s", n, lines, &log)
			}
		}
		after(0, true, true, 1)
		<-w.Known()
		after(time.Hour, true, true, 1)
		after(6*time.Second, false, false, 2)
		after(time.Hour, false, false, 2)
		for range 20 { // failures with a success between them
			after(31*time.Second, true, false, 2)
			after(40*time.Second, false, false, 2)
		}
		after(95*time.Second, true, true, 3)
		after(time.Hour, true, true, 3)
		after(6*time.Second, false, false, 4)
		stop()
		<-done
	})
}

// TestHereAtOnce: a bucket that answers at the start needs no line.
func TestHereAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		w := bucket.New(func(context.Context) error { return nil }, slog.New(slog.NewTextHandler(&log, nil)))
		go w.Run(t.Context())
		<-w.Known()
		if w.Away() != nil || log.Len() > 0 {
			t.Errorf("%v\n%s", w.Away(), &log)
		}
	})
}

// TestNone: a node without a bucket waits for none.
func TestNone(t *testing.T) {
	w, err := bucket.Open("", slog.New(slog.DiscardHandler))
	if w != nil || err != nil {
		t.Fatal(w, err)
	}
	w.Run(t.Context())
	<-w.Known()
	if w.Away() != nil || w.Reason() != "" {
		t.Error(w.Away(), w.Reason())
	}
}

// TestReasons: what callers learn of a real server that refuses, has no such bucket, or is away.
func TestReasons(t *testing.T) {
	addr := s3test.Server(t, "../../../store/blob/s3/testserver")
	s3test.MakeBucket(t, addr, "turns")
	for _, one := range []struct{ endpoint, key, store, reason string }{
		{"http://" + addr, s3test.SecretKey, "s3://turns/a", ""},
		{"http://" + addr, "another-secret", "s3://turns/a", "it refuses the node's requests"},
		{"http://" + addr, s3test.SecretKey, "s3://nothing/a", "it does not exist"},
		{"http://127.0.0.1:1", s3test.SecretKey, "s3://turns/a", "it does not answer"},
	} {
		t.Setenv("AWS_ENDPOINT_URL_S3", one.endpoint)
		t.Setenv("AWS_REGION", "us-east-1")
		t.Setenv("AWS_ACCESS_KEY_ID", s3test.AccessKey)
		t.Setenv("AWS_SECRET_ACCESS_KEY", one.key)
		var log bytes.Buffer
		w, err := bucket.Open(one.store, slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); w.Run(ctx) }()
		<-w.Known()
		if got := w.Reason(); got != one.reason {
			t.Errorf("%s with %s: %q (%v), not %q", one.store, one.endpoint, got, w.Away(), one.reason)
		}
		stop()
		<-done
		if strings.Contains(log.String(), one.key) {
			t.Errorf("the log has the key:\n%s", &log)
		}
	}
}
