package main

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"turnstone.dev/turnstone/internal/server/config"
	"turnstone.dev/turnstone/internal/store/blob/s3/s3test"
	"turnstone.dev/turnstone/internal/testhome"
)

// TestBucketAway: a node whose bucket refuses its credentials at the start registers and gets no turns, and
// says why, until the bucket answers.
func TestBucketAway(t *testing.T) {
	t.Parallel()
	program, err := s3test.Build(t.Context(), testhome.Dir(t), "../../internal/store/blob/s3/testserver")
	check(t, err)
	s3, err := s3test.Start(s3test.Options{Program: program, Dir: t.TempDir()})
	check(t, err)
	t.Cleanup(s3.End)
	check(t, s3.Bucket(t.Context(), "turns"))
	s3.Fail(func(w http.ResponseWriter, _ *http.Request) bool {
		s3test.Refuse(w, http.StatusForbidden, "InvalidAccessKeyId")
		return true
	})
	dir := t.TempDir()
	peers := "unix:" + filepath.Join(dir, "front.sock")
	front := start(t, filepath.Join(dir, "front"), []string{"TURN_SERVER_PEERS_LISTEN=" + peers},
		"--role", config.Gateway, "--role", config.Controller, "--listen", "127.0.0.1:0")
	node := start(t, filepath.Join(dir, "node"), []string{"TURN_SERVER_PEERS_CONTROLLER=" + peers,
		"TURN_SERVER_PEERS_LISTEN=unix:" + filepath.Join(dir, "node.sock"), "TURN_SERVER_NODE_NAME=n1",
		"TURN_SERVER_NODE_STORE=s3://turns/one", "TURN_SERVER_TELEMETRY_LISTEN=127.0.0.1:0",
		"AWS_ENDPOINT_URL_S3=" + s3.URL, "AWS_REGION=us-east-1", "AWS_ACCESS_KEY_ID=" + s3test.AccessKey,
		"AWS_SECRET_ACCESS_KEY=" + s3test.SecretKey}, "--role", config.Node)
	node.await("node registered")
	secret, url := token(t, front), "http://"+front.address()
	turn := func() string {
		_, text := call(t, http.DefaultClient, url, secret, "TurnService/StartTurn", fmt.Sprintf(
			`{"idempotency_key":"k","client":{"client_public_key":%[1]q,"nonce":%[1]q}}`,
			base64.StdEncoding.EncodeToString(make([]byte, 32))))
		return text
	}
	const refusal = "reaches the bucket"
	if got := turn(); !strings.Contains(got, refusal) {
		t.Errorf("a turn while the bucket is away: %s", got)
	}
	page := regexp.MustCompile(`serving metrics.*address="?(127\.0\.0\.1:\d+)`).FindStringSubmatch(node.text())
	if page == nil {
		t.Fatal("there is no page")
	}
	ready := func() (int, string) {
		r, err := http.Get("http://" + page[1] + "/readyz")
		check(t, err)
		defer func() { _ = r.Body.Close() }()
		b, err := io.ReadAll(r.Body)
		check(t, err)
		return r.StatusCode, string(b)
	}
	if code, text := ready(); code != http.StatusServiceUnavailable || !strings.Contains(text, "InvalidAccessKeyId") {
		t.Errorf("/readyz while the bucket is away: %d %s", code, text)
	}
	c := pinned(t, front, node, url)
	const warning = `its bucket cannot be used: "it refuses the node's requests"`
	if out, errs, _ := c.turn("doctor"); !strings.Contains(out, warning) {
		t.Errorf("turn doctor: %s%s", out, errs)
	}
	if n := node.times("cannot be used: this node takes no turns"); n != 1 {
		t.Errorf("the log has %d lines about it", n)
	}

	s3.Fail(nil)
	node.await("the bucket of sessions can be used again")
	waitFor(t, func() string {
		if got := turn(); strings.Contains(got, refusal) {
			return got
		}
		return ""
	})
	if code, text := ready(); code != http.StatusOK || text != "ok\n" {
		t.Errorf("/readyz afterwards: %d %s", code, text)
	}
	if out := c.must("doctor"); strings.Contains(out, "bucket") {
		t.Errorf("turn doctor afterwards: %s", out)
	}
	if strings.Contains(node.text(), s3test.SecretKey) {
		t.Error("the log has the key")
	}
	node.end()
	front.end()
}
