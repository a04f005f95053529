package kubetest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"k8s.io/client-go/rest"
)

// Compact makes etcd forget all but the latest revision, also while the API server is away: a watch that
// continues at an earlier one has to read its list again.
func (c *Cluster) Compact(ctx context.Context) error {
	var now struct{ Header struct{ Revision string } }
	if err := c.ask(ctx, "range", `{"key":"AA=="}`, &now); err != nil {
		return err
	}
	return c.ask(ctx, "compaction", `{"physical":true,"revision":"`+now.Header.Revision+`"}`, nil)
}

// ask calls etcd's gateway for JSON.
func (c *Cluster) ask(ctx context.Context, method, body string, answer any) error {
	f := c.auth.path
	client, err := rest.HTTPClientFor(&rest.Config{TLSClientConfig: rest.TLSClientConfig{CAFile: f("ca.crt"),
		CertFile: f("server.crt"), KeyFile: f("server.key")}})
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.kv+"/v3/kv/"+method, bytes.NewBufferString(body))
	if err != nil {
		return err
	}
	a, err := client.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = a.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(a.Body, maxTail))
	if err == nil && a.StatusCode != http.StatusOK {
		err = fmt.Errorf("etcd: %s: %s: %s", method, a.Status, text)
	}
	if err != nil || answer == nil {
		return err
	}
	return json.Unmarshal(text, answer)
}
