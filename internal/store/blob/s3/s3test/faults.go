package s3test

import (
	"bytes"
	"context"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
)

// A Fault is what becomes of one request.
type Fault string

// The faults. Those of one kind of request are None for others.
const (
	None Fault = ""
	// A server that is busy, or away.
	SlowDown Fault = "503 SlowDown"
	TooMany  Fault = "429 with Retry-After"
	Broken   Fault = "a broken connection"
	Silent   Fault = "no answer"
	// Answers to GET that are not what they say.
	HalfSilent Fault = "half of a body, and silence"
	HalfBroken Fault = "half of a body, and a broken connection"
	Corrupt    Fault = "a body with another byte"
	// Requests that the server performs otherwise than it says.
	NotStored  Fault = "a PUT that is answered and not stored"
	AnswerLost Fault = "a request that is performed and not answered"
	Twice      Fault = "a request that is performed twice"
	WrongTag   Fault = "a PUT with another ETag"
	Forgotten  Fault = "a blob that is not found"
	LateList   Fault = "a list without the newest blobs"
	Skewed     Fault = "RequestTimeTooSkewed"
)

// Faults has all faults but None and those that are silent.
func Faults() []Fault {
	return []Fault{SlowDown, TooMany, Broken, HalfBroken, Corrupt, NotStored, AnswerLost, Twice,
		WrongTag, Forgotten, LateList}
}

// A Plan decides what becomes of a request.
type Plan func(r *http.Request) Fault

// Plan lets the server's proxy follow p; nil: it forwards all requests. Requests that are silent end
// with their client, or with the next call.
func (s *Started) Plan(p Plan) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.release != nil {
		close(s.release)
		s.release = nil
	}
	s.plan = p
	if p != nil {
		s.release = make(chan struct{})
	}
}

// A List is a plan: requests meet its faults in their order, and later ones none.
func List(all ...Fault) Plan {
	var mu sync.Mutex
	return func(*http.Request) Fault {
		mu.Lock()
		defer mu.Unlock()
		if len(all) == 0 {
			return None
		}
		f := all[0]
		all = all[1:]
		return f
	}
}

// faulty is the handler of a request with a fault.
type faulty struct {
	forward http.Handler
	release <-chan struct{}
	newest  string // the key of the last PUT
}

func (f faulty) serve(w http.ResponseWriter, r *http.Request, fault Fault) {
	body, _ := io.ReadAll(r.Body) // or the connection cannot be used again
	switch fault {
	case SlowDown:
		Refuse(w, http.StatusServiceUnavailable, "SlowDown")
	case TooMany:
		w.Header().Set("Retry-After", "1")
		Refuse(w, http.StatusTooManyRequests, "TooManyRequests")
	case Skewed:
		Refuse(w, http.StatusForbidden, "RequestTimeTooSkewed")
	case Broken:
		panic(http.ErrAbortHandler)
	case Silent:
		f.silence(r.Context())
	case AnswerLost:
		f.perform(r, body)
		panic(http.ErrAbortHandler)
	case Twice:
		f.perform(r, body)
		write(w, f.perform(r, body))
	default:
		f.data(w, r, body, fault)
	}
}

// data performs the faults of GET and PUT.
func (f faulty) data(w http.ResponseWriter, r *http.Request, body []byte, fault Fault) {
	put, list := r.Method == http.MethodPut, r.URL.Query().Has("list-type")
	reads := !put && !list && (r.Method == http.MethodGet || r.Method == http.MethodHead)
	switch {
	case put && fault == NotStored:
		w.Header().Set("ETag", `"00000000000000000000000000000000"`)
		w.WriteHeader(http.StatusOK)
		return
	case reads && fault == Forgotten:
		Refuse(w, http.StatusNotFound, "NoSuchKey")
		return
	}
	a := f.perform(r, body)
	switch {
	case put && fault == WrongTag:
		a.Header().Set("ETag", `"ffffffffffffffffffffffffffffffff"`)
	case list && fault == LateList:
		a.Body = bytes.NewBuffer(without(a.Body.Bytes(), f.newest))
		a.Header().Del("Content-Length")
	case r.Method != http.MethodGet || list || a.Code >= 300 || a.Body.Len() == 0:
	case fault == Corrupt:
		b := a.Body.Bytes()
		b[len(b)/2] ^= 1
	case fault == HalfBroken, fault == HalfSilent:
		half := a.Body.Len() / 2
		maps.Copy(w.Header(), a.Header())
		w.WriteHeader(a.Code)
		_, _ = w.Write(a.Body.Bytes()[:half])
		_ = http.NewResponseController(w).Flush()
		if fault == HalfSilent {
			f.silence(r.Context())
		}
		panic(http.ErrAbortHandler)
	}
	write(w, a)
}

func (f faulty) silence(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-f.release:
	}
	panic(http.ErrAbortHandler)
}

// perform forwards the request, and returns the answer.
func (f faulty) perform(r *http.Request, body []byte) *httptest.ResponseRecorder {
	a := httptest.NewRecorder()
	r = r.Clone(context.WithoutCancel(r.Context()))
	r.Body = io.NopCloser(bytes.NewReader(body))
	f.forward.ServeHTTP(a, r)
	return a
}

func write(w http.ResponseWriter, a *httptest.ResponseRecorder) {
	maps.Copy(w.Header(), a.Header())
	w.WriteHeader(a.Code)
	_, _ = w.Write(a.Body.Bytes())
}

var contents = regexp.MustCompile(`(?s)<Contents>.*?</Contents>`)

// without removes a key from a list of keys.
func without(list []byte, key string) []byte {
	return contents.ReplaceAllFunc(list, func(b []byte) []byte {
		if key != "" && bytes.Contains(b, []byte("<Key>"+key+"</Key>")) {
			return nil
		}
		return b
	})
}

// keyOf returns the key in the path /BUCKET/KEY.
func keyOf(r *http.Request) string {
	_, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	return key
}
