package s3_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/blob/s3"
	"turnstone.dev/turnstone/internal/store/blob/s3/pace"
	"turnstone.dev/turnstone/internal/store/blob/s3/s3test"
	"turnstone.dev/turnstone/internal/testhome"
)

// faulty starts a server with a proxy for faults, and opens a store there.
func faulty(t *testing.T, o pace.Options) (*s3test.Started, *s3.Store) {
	t.Helper()
	program, err := s3test.Build(t.Context(), testhome.Dir(t), "testserver")
	check(t, err)
	server, err := s3test.Start(s3test.Options{Program: program, Dir: t.TempDir()})
	check(t, err)
	t.Cleanup(server.End)
	check(t, server.Bucket(t.Context(), "faults"))
	t.Setenv("AWS_ACCESS_KEY_ID", accessKey)
	t.Setenv("AWS_SECRET_ACCESS_KEY", secretKey)
	return server, open(t, s3.Options{Endpoint: strings.TrimPrefix(server.URL, "http://"),
		Bucket: "faults", Pace: o})
}

// read returns a blob.
func read(s *s3.Store, name string) ([]byte, error) {
	r, err := s.Get(context.Background(), name, 0, -1)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(r)
	return b, errors.Join(err, r.Close())
}

// TestTransient: a fault of some requests is not the caller's: a blob is there when Put returns, and
// Get returns it.
func TestTransient(t *testing.T) {
	server, s := faulty(t, pace.Options{Stall: 3 * time.Second})
	want := bytes.Repeat([]byte("0123456789abcdef"), 10_000)
	for _, c := range []struct {
		name string
		plan []s3test.Fault
	}{
		{"busy", []s3test.Fault{s3test.SlowDown, s3test.SlowDown}},
		{"later", []s3test.Fault{s3test.TooMany}},
		{"broken", []s3test.Fault{s3test.Broken}},
		{"silent", []s3test.Fault{s3test.Silent}},
		{"unanswered", []s3test.Fault{s3test.AnswerLost}},
		{"twice", []s3test.Fault{s3test.Twice}},
		{"tag", []s3test.Fault{s3test.WrongTag}},
		{"lost", []s3test.Fault{s3test.NotStored}},
		{"forgotten", []s3test.Fault{s3test.None, s3test.Forgotten}},
	} {
		server.Plan(s3test.List(c.plan...))
		if err := s.Put(t.Context(), c.name, bytes.NewReader(want), int64(len(want))); err != nil {
			t.Errorf("%s: put: %v", c.name, err)
		}
		server.Plan(nil)
		if got, err := read(s, c.name); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes of %d are there: %v", c.name, len(got), len(want), err)
		}
	}
	for _, f := range []s3test.Fault{s3test.SlowDown, s3test.Broken, s3test.HalfBroken,
		s3test.HalfSilent, s3test.Forgotten, s3test.AnswerLost} {
		server.Plan(s3test.List(f))
		if got, err := read(s, "busy"); err != nil || !bytes.Equal(got, want) {
			t.Errorf("get with %s: %d bytes of %d: %v", f, len(got), len(want), err)
		}
	}
}

// TestLasting: a fault that stays is an error that says what it is, within bounds, and a caller that
// has enough does not wait for it.
func TestLasting(t *testing.T) {
	server, patient := faulty(t, pace.Options{})
	hasty := open(t, s3.Options{Endpoint: strings.TrimPrefix(server.URL, "http://"), Bucket: "faults",
		Pace: pace.Options{Stall: 200 * time.Millisecond, Patience: time.Second,
			Pause: 50 * time.Millisecond}})
	names := 0
	put := func(ctx context.Context, s *s3.Store) error {
		names++
		return s.Put(ctx, fmt.Sprint("x", names), strings.NewReader("x"), 1)
	}
	always := func(f s3test.Fault) { server.Plan(func(*http.Request) s3test.Fault { return f }) }
	for _, c := range []struct {
		store *s3.Store
		fault s3test.Fault
		hint  string
	}{
		{hasty, s3test.SlowDown, "again later"},
		{hasty, s3test.TooMany, "again later"},
		{hasty, s3test.Silent, "the bucket's server"},
		{hasty, s3test.Broken, "the bucket's server"},
		{patient, s3test.NotStored, "not reliable"},
		{patient, s3test.Skewed, "clock"},
	} {
		always(c.fault)
		err := put(t.Context(), c.store)
		if turnstone.KindOf(err) != turnstone.KindUnavailable ||
			!strings.Contains(turnstone.HintOf(err), c.hint) {
			t.Errorf("%s: %v (%s, %s)", c.fault, err, turnstone.KindOf(err), turnstone.HintOf(err))
		}
		server.Plan(nil)
		check(t, put(t.Context(), patient))
	}
	for _, c := range []struct {
		fault s3test.Fault
		at    int32 // the request in which the caller has enough
	}{{s3test.SlowDown, 2}, {s3test.Silent, 1}} {
		var asked atomic.Int32
		ctx, cancel := context.WithCancel(t.Context())
		server.Plan(func(*http.Request) s3test.Fault {
			if asked.Add(1) == c.at {
				cancel()
			}
			return c.fault
		})
		if err := put(ctx, patient); turnstone.KindOf(err) != turnstone.KindCanceled {
			t.Errorf("%s, canceled: %v", c.fault, err)
		}
		server.Plan(nil)
		cancel()
		check(t, put(t.Context(), patient))
	}
}

// TestClockSaid: the hint says by how much a clock is wrong, also where the server's answer has no
// code.
func TestClockSaid(t *testing.T) {
	server, s := faulty(t, pace.Options{})
	server.Fail(func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("Date", time.Now().Add(3*time.Hour).UTC().Format(http.TimeFormat))
		w.WriteHeader(http.StatusForbidden)
		return true
	})
	_, err := s.Get(t.Context(), "x", 0, 0) // a HEAD
	if hint := turnstone.HintOf(err); !strings.Contains(hint, "set this machine's clock: it is ") ||
		!strings.Contains(hint, " behind that of the bucket's server") {
		t.Errorf("%v (%s)", err, hint)
	}
}
