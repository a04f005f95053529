package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"turnstone.dev/turnstone/internal/network/recording"
)

// TestAnswerBeforeTheBody: a guest gets all of an answer that its host begins before the guest has
// sent its request's body, and the host gets all of the body.
func TestAnswerBeforeTheBody(t *testing.T) {
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := http.NewResponseController(w)
		if err := c.EnableFullDuplex(); err != nil {
			t.Error(err)
		}
		_, _ = io.WriteString(w, "begun\n")
		_ = c.Flush()
		body, err := io.ReadAll(r.Body)
		_, _ = fmt.Fprintf(w, "%s %v", body, err)
	}))
	t.Cleanup(host.Close)
	web := at("web.example.com", "192.0.2.2:80", host)
	p := newProxied(t, Options{Recorder: recording.NewRecorder(recording.Options{Out: io.Discard})},
		web)
	for name, sent := range map[string][2]string{
		"length": {"Content-Length: 2\r\n\r\na", "b"},
		"chunks": {"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n", "1\r\nb\r\n0\r\n\r\n"},
	} {
		c := p.connect(web)
		fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: web.example.com\r\n%s", sent[0])
		answer, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		in := bufio.NewReader(answer.Body)
		if line, err := in.ReadString('\n'); line != "begun\n" {
			t.Fatalf("%s: %q %v", name, line, err)
		}
		fmt.Fprint(c, sent[1])
		if rest, err := io.ReadAll(in); string(rest) != "ab <nil>" || err != nil {
			t.Errorf("%s: %q %v", name, rest, err)
		}
		_ = c.Close()
	}
}
