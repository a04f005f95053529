package main

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"

	"github.com/rogpeppe/go-internal/testscript"
)

// model starts a stand-in of a model's HTTP API until the script's end: "model NAME". It is
// https://host.turnstone.internal:$NAME, whose authority SSL_CERT_FILE names, answers every question
// with one sentence, and logs the key of each request in NAME.log.
func model(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: model NAME")
	}
	log, err := os.Create(ts.MkAbs(args[0] + ".log"))
	ts.Check(err)
	var mu sync.Mutex
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(io.LimitReader(r.Body, 16<<20))
		mu.Lock()
		fmt.Fprintf(log, "%s %s key=%q\n", r.Method, r.URL.Path, r.Header.Get("X-Api-Key"))
		mu.Unlock()
		answerMessage(w, body)
	}))
	cert, authority := scriptCertificate(ts)
	s.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
	s.StartTLS()
	ts.Defer(func() { s.Close(); _ = log.Close() })
	ts.Check(os.WriteFile(ts.MkAbs("authority.pem"), authority, 0o600))
	ts.Setenv("SSL_CERT_FILE", ts.MkAbs("authority.pem"))
	_, port, err := net.SplitHostPort(s.Listener.Addr().String())
	ts.Check(err)
	ts.Setenv(args[0], port)
}

// answerMessage answers a request of the Messages API, as a stream if it asks for one.
func answerMessage(w http.ResponseWriter, body []byte) {
	const answer = "the stand-in answers"
	var q struct {
		Model  string `json:"model"`
		Stream bool   `json:"stream"`
	}
	_ = json.Unmarshal(body, &q)
	type object = map[string]any
	message := object{"id": "msg_1", "type": "message", "role": "assistant", "model": q.Model,
		"content": []any{}, "stop_reason": nil, "stop_sequence": nil,
		"usage": object{"input_tokens": 1, "output_tokens": 1}}
	if !q.Stream {
		message["content"], message["stop_reason"] = []any{object{"type": "text", "text": answer}}, "end_turn"
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(message)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for _, e := range []object{{"type": "message_start", "message": message},
		{"type": "content_block_start", "index": 0, "content_block": object{"type": "text", "text": ""}},
		{"type": "content_block_delta", "index": 0, "delta": object{"type": "text_delta", "text": answer}},
		{"type": "content_block_stop", "index": 0},
		{"type": "message_delta", "delta": object{"stop_reason": "end_turn", "stop_sequence": nil},
			"usage": object{"output_tokens": 5}}, {"type": "message_stop"}} {
		b, _ := json.Marshal(e)
		fmt.Fprintf(w, "event: %s\ndata: %s\n\n", e["type"], b)
	}
}
