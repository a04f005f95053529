package repo_test

import (
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/repo/repotest"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/store/blob/s3/s3test"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
)

// TestStoreInABucket checks that turns are stored in a bucket, and that the next process finds
// them; the index is local, and may be lost.
func TestStoreInABucket(t *testing.T) {
	addr := s3test.Server(t, "../store/blob/s3/testserver")
	s3test.Bucket(t, addr, "turns")
	t.Setenv("AWS_ENDPOINT_URL_S3", "http://"+addr)
	t.Setenv("AWS_REGION", "us-east-1")
	ctx := t.Context()
	const place = "s3://turns/prefix/a"
	p := repotest.On(t, repotest.OpenAt(&statedir.Dir{Root: t.TempDir()}, place))
	s := p.Session("s")
	large := repotest.Random(3<<20, 5)
	p.Turn(s, "main", treetest.Texts(map[string]string{"/a": "one", "/large": large})...)
	p.Turn(s, "main", treetest.Texts(map[string]string{"/a": "two", "/large": large})...)
	if err := p.Repo.Close(); err != nil {
		t.Fatal(err)
	}
	again := func(x *repo.Repo) {
		t.Helper()
		if got := string(ok[[]byte](t)(x.Receipt(ctx, "s@1"))); !strings.HasSuffix(got,
			"\n# Turn 1\n") {
			t.Errorf("receipt: %q", got)
		}
		if r := ok[*turnstone.FsckReport](t)(x.Fsck(ctx)); !r.OK() || r.Turns != 2 {
			t.Errorf("%+v", r)
		}
	}
	second := repotest.OpenAt(p.Repo.Dir, place)
	again(second)
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(p.Repo.Dir.Path("store-s3")); err != nil {
		t.Fatal(err)
	}
	third := repotest.OpenAt(p.Repo.Dir, place)
	defer func() { _ = third.Close() }()
	again(third)
	ok[*turnstone.GCReport](t)(third.GC(ctx, turnstone.GCRequest{}))
	again(third)

	// Another state directory is rejected.
	other := repotest.OpenAt(&statedir.Dir{Root: t.TempDir()}, place)
	if _, err := other.Sessions(ctx); turnstone.KindOf(err) != turnstone.KindUnavailable ||
		!strings.Contains(turnstone.HintOf(err), "its own prefix") {
		t.Errorf("%v (%s)", err, turnstone.HintOf(err))
	}
	other = repotest.OpenAt(other.Dir, "s3://turns/prefix/b")
	ok[[]turnstone.SessionInfo](t)(other.Sessions(ctx))
	_ = other.Close()

	// Of several concurrent claims at most one is accepted.
	var wg sync.WaitGroup
	var mu sync.Mutex
	in := 0
	for range 6 {
		x := repotest.OpenAt(&statedir.Dir{Root: t.TempDir()}, "s3://turns/prefix/c")
		wg.Go(func() {
			_, err := x.Sessions(ctx)
			_ = x.Close()
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				in++
			} else if turnstone.KindOf(err) != turnstone.KindUnavailable {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if in > 1 {
		t.Errorf("%d are in one place", in)
	}
}

// TestNoBucket checks that the error names an unreachable place, with a hint.
func TestNoBucket(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "x")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "y")
	t.Setenv("AWS_REGION", "us-east-1")
	t.Setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
	x := repotest.OpenAt(&statedir.Dir{Root: t.TempDir()}, "s3://turns/x")
	defer func() { _ = x.Close() }()
	start := time.Now()
	_, err := x.Sessions(t.Context())
	if turnstone.KindOf(err) != turnstone.KindUnavailable ||
		!strings.Contains(err.Error(), "s3://turns/x") ||
		!strings.Contains(turnstone.HintOf(err), "AWS_ENDPOINT_URL_S3") {
		t.Errorf("%v (%s)", err, turnstone.HintOf(err))
	}
	t.Logf("after %s: %v", time.Since(start), err)
	x = repotest.OpenAt(x.Dir, "bucket")
	if _, err := x.Sessions(t.Context()); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Errorf("%v", err)
	}
}
