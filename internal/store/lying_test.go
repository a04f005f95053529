package store_test

import (
	"bytes"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store"
	"turnstone.dev/turnstone/internal/store/blob/s3"
	"turnstone.dev/turnstone/internal/store/blob/s3/pace"
	"turnstone.dev/turnstone/internal/store/blob/s3/s3test"
	"turnstone.dev/turnstone/internal/testhome"
)

// TestLyingServer: whatever an S3 server answers, what a Flush has announced can be read, also by
// another machine; what is read is what was put; and no error outlives its fault.
func TestLyingServer(t *testing.T) {
	if f := flag.Lookup("rapid.checks"); f.Value.String() == f.DefValue {
		check(t, flag.Set("rapid.checks", "12")) // each waits for the pauses of the client
	}
	server := lies(t)
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		server.Plan(nil)
		n++
		m := &liedTo{T: rt, server: server, prefix: fmt.Sprint("check-", n),
			announced: map[turnstone.Digest][]byte{}}
		here, there := m.machine(t), m.machine(t)
		for step := range rapid.IntRange(1, 3).Draw(rt, "steps") {
			m.plan("writing")
			m.write(t, here, step)
			for _, s := range []*store.Store{there, here} {
				m.plan("reading")
				m.read(t, s, true)
			}
			server.Plan(nil)
			m.read(t, here, false)
			m.read(t, there, false)
		}
		m.read(t, m.machine(t), false)
	})
}

// lies starts a server with the bucket lies.
func lies(t *testing.T) *s3test.Started {
	t.Helper()
	program, err := s3test.Build(t.Context(), testhome.Dir(t), "blob/s3/testserver")
	check(t, err)
	server, err := s3test.Start(s3test.Options{Program: program, Dir: t.TempDir()})
	check(t, err)
	t.Cleanup(server.End)
	check(t, server.Bucket(t.Context(), "lies"))
	t.Setenv("AWS_ACCESS_KEY_ID", s3test.AccessKey)
	t.Setenv("AWS_SECRET_ACCESS_KEY", s3test.SecretKey)
	return server
}

// TestOneLie: a machine that reads for the first time what another one has put does so although one
// answer, whichever it is, is not true.
func TestOneLie(t *testing.T) {
	server := lies(t)
	want := make([]byte, 50_000)
	_, _ = rand.NewChaCha8([32]byte{}).Read(want)
	m := &liedTo{server: server, prefix: "one"}
	b, err := m.machine(t).Begin(t.Context())
	check(t, err)
	d, err := b.Put(t.Context(), want)
	check(t, err)
	check(t, b.Flush(t.Context()))
	check(t, b.Close())
	for _, f := range []s3test.Fault{s3test.LateList, s3test.Corrupt, s3test.Forgotten,
		s3test.HalfBroken, s3test.SlowDown} {
		for at := range 3 { // the list, the pack's table, the object
			plan := make([]s3test.Fault, at+1)
			plan[at] = f
			server.Plan(s3test.List(plan...))
			got, err := m.machine(t).Get(t.Context(), d)
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s in request %d: %d bytes of %d: %v", f, at+1, len(got), len(want), err)
			}
		}
	}
}

// liedTo are machines whose server lies.
type liedTo struct {
	*rapid.T
	server    *s3test.Started
	prefix    string
	announced map[turnstone.Digest][]byte
}

// plan lets some requests meet faults.
func (m *liedTo) plan(when string) {
	m.server.Plan(s3test.List(rapid.SliceOfN(rapid.SampledFrom(append(s3test.Faults(), s3test.None,
		s3test.None)), 0, 4).Draw(m.T, when)...))
}

// machine opens the store of a machine, which has its own index.
func (m *liedTo) machine(t *testing.T) *store.Store {
	blobs, err := s3.Open(s3.Options{Endpoint: strings.TrimPrefix(m.server.URL, "http://"),
		Insecure: true, Region: "us-east-1", Bucket: "lies", Prefix: m.prefix,
		Pace: pace.Options{Pause: 20 * time.Millisecond}})
	check(t, err)
	s, err := store.Open(t.Context(), t.TempDir(), blobs, store.Options{})
	check(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// write puts objects, and notes them if the store says that they are durable.
func (m *liedTo) write(t *testing.T, s *store.Store, step int) {
	b, err := s.Begin(t.Context())
	check(t, err)
	defer func() { _ = b.Close() }()
	put := map[turnstone.Digest][]byte{}
	for i := range 3 {
		p := make([]byte, 1+20_000*i) // which cannot be compressed
		_, _ = rand.NewChaCha8([32]byte{byte(step), byte(i)}).Read(p)
		d, err := b.Put(t.Context(), p)
		if err != nil {
			m.expected(err)
			return
		}
		put[d] = p
	}
	if err := b.Flush(t.Context()); err != nil {
		m.expected(err)
		return
	}
	for d, p := range put {
		m.announced[d] = p
	}
}

// read reads all that was announced; with faults, it may not be readable for now.
func (m *liedTo) read(t *testing.T, s *store.Store, faults bool) {
	for d, want := range m.announced {
		got, err := s.Get(t.Context(), d)
		switch {
		case err == nil && !bytes.Equal(got, want):
			m.Fatalf("%s has other bytes", d)
		case err != nil && !faults:
			m.Fatalf("%s was announced: %v", d, err)
		}
	}
}

func (m *liedTo) expected(err error) {
	if k := turnstone.KindOf(err); k != turnstone.KindUnavailable {
		m.Fatalf("%s: %v", k, err)
	}
}
