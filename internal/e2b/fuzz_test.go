package e2b

import (
	"net/url"
	"testing"
	"time"
)

// FuzzNewSandbox decodes bodies of requests: what is accepted makes a call, or is refused.
func FuzzNewSandbox(f *testing.F) {
	f.Add([]byte(`{"templateID":"base","timeout":1,"network":{"denyOut":["0.0.0.0/0"]},"metadata":{"a":"b"}}`))
	f.Add([]byte(`{"autoResume":{"enabled":true}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var q newSandbox
		if decode(b, &q) != nil {
			return
		}
		m, err := q.request("key", time.Minute)
		if (m == nil) == (err == nil) {
			t.Fatalf("%v and %v", m, err)
		}
		if err == nil && (m.Timeout.AsDuration() < 0 || m.Timeout.AsDuration() > longest) {
			t.Fatal(m.Timeout)
		}
	})
}

// FuzzListQuery decodes queries of lists.
func FuzzListQuery(f *testing.F) {
	f.Add("state=running,paused&limit=3&metadata=a%3Db&order=asc&nextToken=asc.x&startedAfter=2026-01-01T00:00:00Z")
	f.Fuzz(func(t *testing.T, text string) {
		q, err := url.ParseQuery(text)
		if err != nil {
			return
		}
		if l, err := parseList(q); err == nil && (l.limit < 1 || l.limit > maxPage || !l.paused && !l.running) {
			t.Fatalf("%+v", l)
		}
	})
}
