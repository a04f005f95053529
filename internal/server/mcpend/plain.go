package mcpend

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
)

// Media types of answers.
const (
	mediaJSON   = "application/json"
	mediaEvents = "text/event-stream"
)

// plain answers calls with JSON, and with events only if something precedes the answer, such as the
// progress of a call whose client asks for it. next answers all calls with events. Clients bound the
// size of an event (the official Python client takes 1 MiB), but not of JSON.
func plain(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost || r.Body == nil {
			next.ServeHTTP(w, r)
			return
		}
		body := &first{ReadCloser: r.Body}
		p := &plainWriter{ResponseWriter: w, body: body}
		r = r.WithContext(r.Context()) // the server looks at its own request's body after the answer
		r.Body = body
		next.ServeHTTP(p, r)
		p.end()
	})
}

// A first is a body that notes its first byte which is no space.
type first struct {
	io.ReadCloser
	b byte // 0: not read yet
}

// Read implements io.Reader.
func (f *first) Read(p []byte) (int, error) {
	n, err := f.ReadCloser.Read(p)
	if text := bytes.TrimLeft(p[:n], " \t\r\n"); f.b == 0 && len(text) > 0 {
		f.b = text[0]
	}
	return n, err
}

// A plainWriter writes one event with an answer as JSON.
type plainWriter struct {
	http.ResponseWriter
	body    *first
	held    []byte // the beginning of the first event
	decided bool   // what is written is written as it is
}

// WriteHeader implements http.ResponseWriter. A status is said of errors alone, which are no events.
func (p *plainWriter) WriteHeader(status int) {
	p.decided = true
	p.ResponseWriter.WriteHeader(status)
}

// Write implements io.Writer.
func (p *plainWriter) Write(b []byte) (int, error) {
	if p.decided || p.Header().Get("Content-Type") != mediaEvents || p.body.b == '[' {
		// an array is a batch of calls, whose answers may be several
		p.decided = true
		return p.ResponseWriter.Write(b)
	}
	whole := b
	if p.held != nil {
		p.held = append(p.held, b...)
		whole = p.held
	}
	event, rest, ok := bytes.Cut(whole, []byte("\n\n"))
	if !ok {
		p.held = append(p.held[:0], whole...)
		return len(b), nil
	}
	p.decided, p.held = true, nil
	if data := answerOf(event); data != nil && len(rest) == 0 {
		p.Header().Set("Content-Type", mediaJSON)
		p.Header().Set("Content-Length", strconv.Itoa(len(data)))
		p.Header().Del("Connection") // which streams set
		whole = data
	}
	if _, err := p.ResponseWriter.Write(whole); err != nil {
		return 0, err
	}
	return len(b), nil
}

// FlushError is for http.ResponseController. What is held is not flushed.
func (p *plainWriter) FlushError() error {
	if !p.decided {
		return nil
	}
	return http.NewResponseController(p.ResponseWriter).Flush()
}

// end writes what is held of an event that was not finished.
func (p *plainWriter) end() {
	if len(p.held) > 0 {
		_, _ = p.ResponseWriter.Write(p.held) // a caller that is gone
	}
}

// answerOf returns the data of an event that is the answer of a call; nil: it is something else.
func answerOf(event []byte) (data []byte) {
	for line := range bytes.SplitSeq(event, []byte("\n")) {
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(name) {
		case "data":
			if data != nil {
				return nil // of several lines, which JSON does not need
			}
			data = value
		case "event":
			if string(value) != "message" {
				return nil
			}
		}
	}
	if !isAnswer(data) {
		return nil
	}
	return data
}

// isAnswer reports whether a message answers a call. The first member that decides is near its
// beginning, so that long answers are not decoded.
func isAnswer(message []byte) bool {
	d := json.NewDecoder(bytes.NewReader(message))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return false
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return false
		}
		switch name {
		case "result", "error":
			return true
		case "method":
			return false
		}
		var skipped json.RawMessage
		if d.Decode(&skipped) != nil {
			return false
		}
	}
	return false
}
