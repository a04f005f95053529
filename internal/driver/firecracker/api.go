package firecracker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"turnstone.dev/turnstone/internal/driver/console"
)

// The used parts of Firecracker's API, with its names (src/firecracker/swagger/firecracker.yaml in
// its repository).
type (
	bootSource struct {
		KernelImagePath string `json:"kernel_image_path"`
		InitrdPath      string `json:"initrd_path"`
		BootArgs        string `json:"boot_args"`
	}
	machineConfiguration struct {
		VCPUCount       int   `json:"vcpu_count"`
		MemSizeMiB      int64 `json:"mem_size_mib"`
		SMT             bool  `json:"smt"`
		TrackDirtyPages bool  `json:"track_dirty_pages"`
	}
	drive struct {
		DriveID      string       `json:"drive_id"`
		PathOnHost   string       `json:"path_on_host"`
		IsRootDevice bool         `json:"is_root_device"`
		IsReadOnly   bool         `json:"is_read_only"`
		CacheType    string       `json:"cache_type"`
		IOEngine     string       `json:"io_engine"`
		RateLimiter  *rateLimiter `json:"rate_limiter,omitempty"`
	}
	rateLimiter struct {
		Bandwidth *tokenBucket `json:"bandwidth,omitempty"` // a token is a byte
		Ops       *tokenBucket `json:"ops,omitempty"`       // a token is an operation
	}
	tokenBucket struct {
		Size       int64 `json:"size"`
		RefillTime int64 `json:"refill_time"` // milliseconds until it is full again
	}
	vsockDevice struct {
		GuestCID uint32 `json:"guest_cid"`
		UDSPath  string `json:"uds_path"`
	}
	entropyDevice struct{}
	balloon       struct {
		AmountMiB         int64 `json:"amount_mib"`
		DeflateOnOOM      bool  `json:"deflate_on_oom"`
		FreePageReporting bool  `json:"free_page_reporting,omitempty"`
	}
	action struct {
		ActionType string `json:"action_type"`
	}
	vmState struct {
		State string `json:"state"`
	}
	snapshotCreate struct {
		SnapshotType string `json:"snapshot_type"`
		SnapshotPath string `json:"snapshot_path"`
		MemFilePath  string `json:"mem_file_path"`
	}
	snapshotLoad struct {
		SnapshotPath string        `json:"snapshot_path"`
		MemBackend   memoryBackend `json:"mem_backend"`
		ResumeVM     bool          `json:"resume_vm"`
		// Both have the same meaning; the first is the newer name.
		TrackDirtyPages     bool `json:"track_dirty_pages,omitempty"`
		EnableDiffSnapshots bool `json:"enable_diff_snapshots,omitempty"`
	}
	memoryBackend struct {
		BackendType string `json:"backend_type"`
		BackendPath string `json:"backend_path"`
	}
	instanceInfo struct {
		State      string `json:"state"`
		VMMVersion string `json:"vmm_version"`
	}
)

// Values of the API.
const (
	statePaused     = "Paused" // also the state of an instance
	stateResumed    = "Resumed"
	stateRunning    = "Running" // state of an instance
	stateNotStarted = "Not started"
	instanceStart   = "InstanceStart"
	fullSnapshot    = "Full"
	diffSnapshot    = "Diff" // the pages written since the previous snapshot, or since the load
	fileBackend     = "File"
	// no wait for the guest's flushes: the disk lives as long as the machine
	unsafeCache = "Unsafe"
	writeback   = "Writeback"
	syncEngine  = "Sync"
)

// A request is an API call whose answer has no content.
type request struct {
	Method string `json:"method"`
	Path   string `json:"path"`
	Body   any    `json:"body"`
}

// An apiError is Firecracker's rejection of a request.
type apiError struct {
	Status  int
	Message string // its fault_message, printable
}

func (e *apiError) Error() string {
	if e.Message == "" {
		return fmt.Sprintf("Firecracker answers %d", e.Status)
	}
	return "Firecracker refuses: " + e.Message
}

// A client is a client of a Firecracker's API. It is safe for concurrent use.
type client struct{ http http.Client }

// Limits of the answers of a Firecracker, whose guest may have taken it over.
const (
	maxAnswer  = 1 << 20
	maxHeaders = 16 << 10
	maxMessage = 400
)

// newClient returns a client over connections that dial makes.
func newClient(dial func(ctx context.Context) (net.Conn, error)) *client {
	return &client{http: http.Client{
		CheckRedirect: func(*http.Request,
			[]*http.Request) error {
			return http.ErrUseLastResponse
		},
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn,
				error) {
				return dial(ctx)
			},
			DisableCompression:     true,
			MaxIdleConns:           1,
			IdleConnTimeout:        time.Minute,
			MaxResponseHeaderBytes: maxHeaders,
		},
	}}
}

// How long an answer may take: the answer to a snapshot comes after the memory is written.
const (
	requestLimit  = 30 * time.Second
	snapshotLimit = 5 * time.Minute
)

// do makes a request. It decodes the answer into out unless out is nil.
func (c *client) do(ctx context.Context, method, path string, in, out any) error {
	return c.within(ctx, requestLimit, method, path, in, out)
}

// doWithin makes a request that may take longer than others.
func (c *client) doWithin(ctx context.Context, limit time.Duration, r request) error {
	return c.within(ctx, limit, r.Method, r.Path, r.Body, nil)
}

func (c *client) within(ctx context.Context, limit time.Duration, method, path string, in,
	out any) error {
	timed, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := c.once(timed, method, path, in, out)
	if err != nil && timed.Err() != nil && ctx.Err() == nil {
		err = fmt.Errorf("no answer within %s", limit)
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	return nil
}

func (c *client) once(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://localhost"+path, body)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "application/json")
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := c.http.Do(req)
	if err != nil {
		var wrapped *url.Error // names the fictitious host
		if errors.As(err, &wrapped) {
			err = wrapped.Err
		}
		return err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	switch {
	case err != nil:
		return fmt.Errorf("its answer is incomplete: %w", err)
	case len(b) > maxAnswer:
		return fmt.Errorf("its answer is longer than %d bytes", maxAnswer)
	}
	return decodeAnswer(res.StatusCode, b, out)
}

// send makes requests in sequence.
func (c *client) send(ctx context.Context, requests ...request) error {
	for _, r := range requests {
		if err := c.do(ctx, r.Method, r.Path, r.Body, nil); err != nil {
			return err
		}
	}
	return nil
}

func (c *client) close() { c.http.CloseIdleConnections() }

// decodeAnswer converts an answer to its value or its error.
func decodeAnswer(status int, body []byte, out any) error {
	if status < 200 || status > 299 {
		var fault struct {
			Message string `json:"fault_message"`
		}
		_ = json.Unmarshal(body, &fault) // an answer of another form has no message
		return &apiError{status, console.Clip(fault.Message, maxMessage)}
	}
	if out == nil {
		return nil
	}
	if status != http.StatusOK {
		return fmt.Errorf("an answer was expected, it is %d", status)
	}
	if err := json.Unmarshal(body, out); err != nil {
		return fmt.Errorf("its answer cannot be read: %w", err)
	}
	return nil
}
