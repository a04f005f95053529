package remote

import (
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"testing"
	"time"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone/internal/api"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	connectv1 "turnstone.dev/turnstone/internal/api/turnstone/v1/turnstonev1connect"
)

// TestEndlessAnswers: an answer without an end, whatever its status and type, and one that does not
// begin, end the call.
func TestEndlessAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		kind   string
		slow   bool // bytes come one by one
		never  bool // no head comes
	}{
		"answer":     {200, "application/proto", false, false},
		"error":      {500, "application/json", false, false},
		"page":       {502, "text/html", false, false},
		"slow":       {200, "application/proto", true, false},
		"slow error": {500, "application/json", true, false},
		"silent":     {200, "", false, true},
	} {
		t.Run(name, func(t *testing.T) {
			over := make(chan struct{})
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				if c.never {
					<-r.Context().Done()
					return
				}
				w.Header().Set("Content-Type", c.kind)
				w.WriteHeader(c.status)
				b := make([]byte, 64<<10)
				for i := range b {
					b[i] = ' '
				}
				if c.slow {
					b = b[:1]
				}
				for r.Context().Err() == nil {
					if _, err := w.Write(b); err != nil {
						return
					}
					w.(http.Flusher).Flush()
					if c.slow {
						select {
						case <-time.After(10 * time.Millisecond): //wait: the answer has no end, however slow it is
						case <-over:
							return
						}
					}
				}
			}))
			defer s.Close()
			defer close(over)
			transport := &http.Transport{}
			defer transport.CloseIdleConnections()
			client := connectv1.NewServerServiceClient(&http.Client{Transport: answers{transport,
				300 * time.Millisecond, 300 * time.Millisecond}}, s.URL, api.ClientOptions()...)
			if !c.slow && !c.never { // the bytes alone end it
				client = connectv1.NewServerServiceClient(&http.Client{Transport: answers{transport,
					time.Hour, time.Hour}}, s.URL, api.ClientOptions()...)
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := client.ListNodes(t.Context(), connect.NewRequest(&v1.ListNodesRequest{}))
			runtime.ReadMemStats(&after)
			if err == nil {
				t.Fatal("an endless answer is one")
			}
			if n := after.TotalAlloc - before.TotalAlloc; n > 64<<20 {
				t.Errorf("it takes %d bytes", n)
			}
		})
	}
}
