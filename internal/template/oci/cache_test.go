package oci

import (
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"turnstone.dev/turnstone/internal/template/oci/ocitest"
)

// TestResumes checks that a download continues where it was interrupted, also in another process.
func TestResumes(t *testing.T) {
	content := random(3_000_000)
	var asked atomic.Int64 // bytes that were sent
	var cuts atomic.Int32
	var ranges atomic.Int32
	reg := ocitest.Serve(t, fault(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if !isBlob(r) {
			next.ServeHTTP(w, r)
			return
		}
		rec := httptest.NewRecorder()
		whole := r.Clone(r.Context())
		whole.Header.Del("Range")
		next.ServeHTTP(rec, whole)
		b := rec.Body.Bytes()
		from := 0
		if spec := r.Header.Get("Range"); spec != "" {
			if _, err := fmt.Sscanf(spec, "bytes=%d-", &from); err != nil {
				t.Error(err)
			}
			ranges.Add(1)
			w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(b)-1, len(b)))
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(b)-from))
		if from > 0 {
			w.WriteHeader(http.StatusPartialContent)
		}
		end := len(b)
		if len(b) > 1_000_000 && cuts.Add(1) <= 5 {
			end = min(end, from+400_000)
		}
		n, _ := w.Write(b[from:end])
		asked.Add(int64(n))
		if end < len(b) {
			panic(http.ErrAbortHandler)
		}
	}).wrap)
	reg.Push(t, "x:1", ocitest.Image(t, ocitest.Config{},
		ocitest.Tar(t, bash, ocitest.File("big", content))))
	ref, err := ParseReference(reg.Host + "/x:1")
	if err != nil {
		t.Fatal(err)
	}
	// The first process stops after two attempts, the second continues.
	c := client(t)
	img, err := c.Resolve(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	one := New(c.opts)
	one.opts.Retries = -1
	if _, err := unpackImage(t, one, img); err == nil {
		t.Fatal("it was not cut off")
	}
	r, err := unpackImage(t, New(c.opts), img)
	if err != nil {
		t.Fatal(err)
	}
	b, err := fs.ReadFile(r.FS, "big")
	if err != nil || string(b) != content {
		t.Errorf("%d bytes came, %v", len(b), err)
	}
	if ranges.Load() < 4 || asked.Load() > 3_600_000 {
		t.Errorf("%d bytes were sent in %d ranges", asked.Load(), ranges.Load())
	}
}

// TestResumesDamage checks that a damaged partial download is not continued.
func TestResumesDamage(t *testing.T) {
	reg := ocitest.Serve(t, nil)
	reg.Push(t, "x:1", ocitest.Image(t, ocitest.Config{},
		ocitest.Tar(t, bash, ocitest.File("big", random(100_000)))))
	c := client(t)
	ref, err := ParseReference(reg.Host + "/x:1")
	if err != nil {
		t.Fatal(err)
	}
	img, err := c.Resolve(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.makeDirs(); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"partial", "blobs"} {
		for _, size := range []int64{10, img.Layers[0].Size, img.Layers[0].Size + 10} {
			if err := os.WriteFile(c.path(dir, img.Layers[0].Digest.Hex()), make([]byte, size),
				0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := unpackImage(t, c, img); err != nil {
				t.Errorf("%s with %d bytes: %v", dir, size, err)
			}
		}
	}
}

// TestPrune checks that downloads stay for other images, up to a bound.
func TestPrune(t *testing.T) {
	reg := ocitest.Serve(t, nil)
	reg.Push(t, "x:1", ocitest.Image(t, ocitest.Config{}, ocitest.Tar(t, bash),
		ocitest.Tar(t, ocitest.File("big", random(1_000_000)))))
	c := client(t)
	if _, err := unpackAt(t, c, reg.Host+"/x:1"); err != nil {
		t.Fatal(err)
	}
	kept := func() int64 {
		n := int64(0)
		entries, err := os.ReadDir(c.path("blobs"))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			info, err := e.Info()
			if err != nil {
				t.Fatal(err)
			}
			n += info.Size()
		}
		return n
	}
	if n := kept(); n < 1_000_000 {
		t.Errorf("%d bytes are kept", n)
	}
	if freed, err := c.Prune(500_000, time.Time{}, true); err != nil || freed < 1_000_000 ||
		kept() < 1_000_000 {
		t.Errorf("only told: %d, %d kept, %v", freed, kept(), err)
	}
	if freed, err := c.Prune(500_000, time.Time{}, false); err != nil || freed < 1_000_000 ||
		kept() > 500_000 || kept() == 0 {
		t.Errorf("%d freed, %d kept, %v", freed, kept(), err)
	}
	if _, err := c.Prune(1<<40, time.Now().Add(time.Hour), false); err != nil || kept() != 0 {
		t.Errorf("%d kept, %v", kept(), err)
	}
	locks, err := os.ReadDir(c.path("locks"))
	if err != nil || len(locks) > 0 {
		t.Errorf("locks: %v, %v", locks, err)
	}
}

// TestAtOnce checks that concurrent requests cause a single download.
func TestAtOnce(t *testing.T) {
	var blobs atomic.Int32
	reg := ocitest.Serve(t, fault(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if isBlob(r) {
			blobs.Add(1)
			time.Sleep(50 * time.Millisecond) //wait: it makes concurrent requests likelier; the test holds without
		}
		next.ServeHTTP(w, r)
	}).wrap)
	layer := ocitest.Tar(t, bash, ocitest.File("big", random(500_000)))
	reg.Push(t, "x:1", ocitest.Image(t, ocitest.Config{}, layer))
	reg.Push(t, "y:1", ocitest.Image(t, ocitest.Config{Env: []string{"A=1"}}, layer))
	blobs.Store(0)
	first := client(t)
	done := make(chan error, 6)
	for i := range cap(done) {
		go func() {
			_, err := unpackAt(t, New(first.opts), reg.Host+[]string{"/x:1", "/y:1"}[i%2])
			done <- err
		}()
	}
	for range cap(done) {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if n := blobs.Load(); n != 3 { // two configs and a layer
		t.Errorf("%d blobs were sent", n)
	}
	nothingKept(t, first)
}
