package main

import (
	"context"
	"net/http"
	"os"
	"slices"

	"github.com/rogpeppe/go-internal/testscript"

	"turnstone.dev/turnstone/internal/store/blob/s3/s3test"
)

// bucketKey is the key of a script's S3 server, which is a **s3test.Started.
type bucketKey struct{}

// bucket starts an S3 server with the bucket turns, which TURN_STORE names from then on, and whose
// files are below BUCKET: "bucket start SIZE". Its file system has that size. Later it fails:
// "bucket full", "bucket throttled", "bucket away", "bucket faults FAULT..." for the next requests,
// "bucket always FAULT" for all; "bucket ok" ends that.
func bucket(ts *testscript.TestScript, neg bool, args []string) {
	s := ts.Value(bucketKey{}).(**s3test.Started)
	if !neg && len(args) > 1 && (args[0] == "faults" || args[0] == "always") {
		bucketPlan(ts, *s, args[0] == "always", args[1:])
		return
	}
	if neg || len(args) == 0 || len(args) > 2 || (len(args) == 2) != (args[0] == "start") {
		ts.Fatalf("usage: bucket start SIZE|full|throttled|away|faults FAULT...|always FAULT|ok")
	}
	fail := func(status int, code string) {
		(*s).Fail(func(w http.ResponseWriter, _ *http.Request) bool {
			if status == 0 {
				panic(http.ErrAbortHandler) // the connection breaks
			}
			s3test.Refuse(w, status, code)
			return true
		})
	}
	switch args[0] {
	case "start":
		program, err := s3test.Build(context.Background(), ts.Getenv("SHARED"),
			"../../internal/store/blob/s3/testserver")
		ts.Check(err)
		dir := ts.MkAbs("s3")
		ts.Check(os.Mkdir(dir, 0o700))
		*s, err = s3test.Start(s3test.Options{Program: program, Dir: dir, Size: args[1]})
		ts.Check(err)
		ts.Defer((*s).End)
		ts.Check((*s).Bucket(context.Background(), "turns"))
		for name, value := range map[string]string{"TURN_STORE": "s3://turns/server",
			"BUCKET": (*s).Data, "AWS_ENDPOINT_URL_S3": (*s).URL, "AWS_REGION": "us-east-1",
			"AWS_ACCESS_KEY_ID": s3test.AccessKey, "AWS_SECRET_ACCESS_KEY": s3test.SecretKey} {
			ts.Setenv(name, value)
		}
	case "full":
		ts.Check((*s).Fill())
	case "throttled":
		fail(http.StatusServiceUnavailable, "SlowDown")
	case "away":
		fail(0, "")
	case "ok":
		(*s).Fail(nil)
		(*s).Plan(nil)
		_ = (*s).Free() // it need not be full
	default:
		ts.Fatalf("bucket %s", args[0])
	}
}

// bucketPlan lets requests meet faults, by their names.
func bucketPlan(ts *testscript.TestScript, s *s3test.Started, always bool, names []string) {
	var all []s3test.Fault
	for _, name := range names {
		f := s3test.Fault(name)
		if !slices.Contains(append(s3test.Faults(), s3test.None, s3test.Skewed), f) {
			ts.Fatalf("there is no fault %q", name)
		}
		all = append(all, f)
	}
	if always {
		s.Plan(func(*http.Request) s3test.Fault { return all[0] })
	} else {
		s.Plan(s3test.List(all...))
	}
}
