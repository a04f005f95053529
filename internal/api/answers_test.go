package api

import (
	"bytes"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	connectv1 "turnstone.dev/turnstone/internal/api/turnstone/v1/turnstonev1connect"
)

var contentTypes = []string{
	"application/json", "application/proto", "application/connect+json",
	"application/connect+proto", "application/grpc", "application/grpc+json",
	"application/grpc-web+proto", "application/json; charset=utf-8", "text/plain",
}

// frame puts a message into the frame of streams.
func frame(b []byte) []byte {
	n := len(b)
	return append([]byte{0, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}, b...)
}

// answers is a transport whose server answers these bytes.
type answers struct {
	status        int
	kind, trailer string
	body          []byte
}

func (a answers) RoundTrip(r *http.Request) (*http.Response, error) {
	h := http.Header{"Content-Type": {a.kind}, "Retry-After": {a.trailer}}
	return &http.Response{StatusCode: a.status, ProtoMajor: 2, Header: h, Request: r,
		Body: io.NopCloser(bytes.NewReader(a.body)), ContentLength: -1}, nil
}

// FuzzAnswers lets a client read bytes as the answer of a hostile server, in each protocol. What
// the user gets is a bounded error that is fit for a terminal, or a message.
func FuzzAnswers(f *testing.F) {
	status := &Status{RetryAfter: 1e9, Reason: "expired", Violations: []Violation{{"a", "b", "c"}},
		Err: turnstone.Errorf("a.b", turnstone.KindExhausted, "c", "d").WithHint("e")}
	sent := ToConnect(status)
	if d, err := proto.Marshal(detail(sent)); err == nil {
		body := `{"code":"resource_exhausted","message":"m\u001b[1m","details":[{"type":` +
			`"turnstone.v1.Error","value":"` + base64.RawStdEncoding.EncodeToString(d) + `"}]}`
		f.Add(uint16(429), uint8(0), "3", []byte(body))
		f.Add(uint16(200), uint8(2), "", frame([]byte(`{"error":`+body+`}`)))
	}
	f.Add(uint16(200), uint8(0), "", []byte(`{"sandbox":{"sandboxId":"x"}}`))
	f.Add(uint16(502), uint8(8), "x", []byte("<html>\x1b[31m"))
	f.Add(uint16(200), uint8(4), "99999999999", []byte{0x80, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, code uint16, encoding uint8, wait string, body []byte) {
		if strings.ContainsAny(wait, "\r\n") {
			return
		}
		kind := contentTypes[int(encoding)%len(contentTypes)]
		client := &http.Client{Transport: answers{100 + int(code)%900, kind, wait, body}}
		options := ClientOptions()
		switch {
		case strings.HasPrefix(kind, "application/grpc-web"):
			options = append(options, connect.WithGRPCWeb())
		case strings.HasPrefix(kind, "application/grpc"):
			options = append(options, connect.WithGRPC())
		}
		if strings.Contains(kind, "json") {
			options = append(options, connect.WithProtoJSON())
		}
		c := connectv1.NewSandboxServiceClient(client, "http://server", options...)
		_, err := c.GetSandbox(t.Context(), connect.NewRequest(&v1.GetSandboxRequest{}))
		checkReceived(t, err)
		s, err := c.WatchSandboxes(t.Context(), connect.NewRequest(&v1.WatchSandboxesRequest{}))
		if err == nil {
			for s.Receive() {
			}
			err = s.Err()
			_ = s.Close()
		}
		checkReceived(t, err)
	})
}

func checkReceived(t *testing.T, err error) {
	t.Helper()
	if err = FromConnect(err); err == nil {
		return
	}
	var s *Status
	var e *turnstone.Error
	if !errors.As(err, &s) || !errors.As(err, &e) {
		t.Fatalf("%#v has no kind", err)
	}
	if ofKind(e.Kind).kind != e.Kind {
		t.Errorf("the kind is %q", e.Kind)
	}
	texts := []string{err.Error(), e.Hint, string(e.Op), e.Subject, s.Reason}
	if len(s.Violations) > maxViolations {
		t.Errorf("there are %d violations", len(s.Violations))
	}
	for _, v := range s.Violations {
		texts = append(texts, v.Field, v.Rule, v.Message)
	}
	for _, text := range texts {
		if most := maxSubject + 2 + maxCause; text != Clean(text, most) {
			t.Errorf("%q is not fit for a terminal", text)
		}
	}
	if wait := RetryAfter(err); wait < 0 || wait > maxRetryAfter {
		t.Errorf("the wait is %s", wait)
	}
}
