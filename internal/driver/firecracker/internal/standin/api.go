package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"

	"turnstone.dev/turnstone/internal/driver/firecracker/internal/apispec"
)

// A vmm is the machine's state that the API shows.
type vmm struct {
	id        string
	fault, at string
	spec      *apispec.Spec

	mu         sync.Mutex
	configured bool   // a resource was configured, so no snapshot may be loaded
	state      string // the API's name of the state
	boot       *struct {
		Kernel string  `json:"kernel_image_path"`
		Initrd *string `json:"initrd_path"`
		Args   *string `json:"boot_args"`
	}
	memory    int64 // MiB
	tracked   bool  // differences may be written
	snapshots int   // number of differences
	drives    []*disk
	vsock     *vsock
}

const (
	notStarted = "Not started"
	running    = "Running"
	paused     = "Paused"
)

// maxPayload is Firecracker's HTTP_MAX_PAYLOAD_SIZE.
const maxPayload = 51200

func serve(socket string, v *vmm) (err error) {
	if v.spec, err = apispec.Load(); err != nil {
		return err
	}
	v.state, v.memory = notStarted, 128
	l, err := net.Listen("unix", socket)
	if err != nil {
		return fmt.Errorf("failed to open the API socket: %w", err)
	}
	if v.fault == "garbage" {
		for {
			conn, err := l.Accept()
			if err != nil {
				return err
			}
			_, _ = conn.Write([]byte("\x00\xff\x13 who is there\r\n\r\n"))
			_ = conn.Close()
		}
	}
	return http.Serve(l, v)
}

// ServeHTTP answers a request, and checks both against the definition. A violation ends the
// process: a test then sees a dead Firecracker, and the reason on its standard error.
func (v *vmm) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxPayload+1))
	if err == nil && len(body) > maxPayload {
		err = fmt.Errorf("a payload of more than %d bytes", maxPayload)
	}
	if err == nil {
		err = v.spec.Request(r.Method, r.URL.Path, body)
	}
	if err == nil && len(body) > 0 && !strings.HasPrefix(r.Header.Get("Content-Type"),
		"application/json") {
		err = fmt.Errorf("a body of type %q", r.Header.Get("Content-Type"))
	}
	note(map[string]any{"method": r.Method, "path": r.URL.Path, "body": string(body)})
	if err != nil {
		broken("the request", err)
	}
	if (v.at == "" || v.at == r.URL.Path) && v.wrong(w, r.URL.Path) {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	status, answer := http.StatusNoContent, []byte(nil)
	out, err := v.handle(r.Method, r.URL.Path, body)
	switch {
	case err != nil:
		status, answer = http.StatusBadRequest,
			marshal(map[string]string{"fault_message": err.Error()})
	case out != nil:
		status, answer = http.StatusOK, marshal(out)
	}
	if err := v.spec.Answer(r.Method, r.URL.Path, status, answer); err != nil {
		broken("the answer", err)
	}
	w.Header().Set("Server", "Firecracker API")
	if len(answer) > 0 {
		w.Header().Set("Content-Type", "application/json")
	}
	w.WriteHeader(status)
	_, _ = w.Write(answer)
	if err != nil && r.URL.Path == "/snapshot/load" { // "the current Firecracker process is ended"
		_ = http.NewResponseController(w).Flush()
		fmt.Fprintln(os.Stderr, "Error: "+err.Error())
		defer os.Exit(1)
	}
}

func broken(what string, err error) {
	fmt.Fprintf(os.Stderr, "Error: %s breaks the API's definition: %s\n", what,
		strings.ReplaceAll(err.Error(), "\n", " "))
	os.Exit(1)
}

// wrong answers as the fault requires, if the fault concerns answers.
func (v *vmm) wrong(w http.ResponseWriter, path string) bool {
	switch v.fault {
	case "refuse":
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		_, _ = w.Write(marshal(map[string]string{
			"fault_message": "it was \x1b[31mtold\nto refuse " + path}))
	case "odd":
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = w.Write([]byte("<html>"))
	case "hang":
		select {}
	case "oversize":
		w.WriteHeader(http.StatusBadRequest)
		for range 64 {
			if _, err := w.Write(bytes.Repeat([]byte(" "), 1<<16)); err != nil {
				break
			}
		}
	case "die":
		os.Exit(149)
	default:
		return false
	}
	return true
}

func marshal(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		broken("the answer", err)
	}
	return b
}

// handle executes a request. The first error of each request has Firecracker's words
// (VmmActionError), or similar words.
func (v *vmm) handle(method, path string, body []byte) (any, error) {
	resource, name, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	started := v.state != notStarted
	switch op := method + " " + resource; op {
	case "GET ":
		return map[string]string{"app_name": "Firecracker", "id": v.id, "state": v.state,
			"vmm_version": version}, nil
	case "PUT machine-config", "PUT boot-source", "PUT drives", "PUT vsock", "PUT entropy",
		"PUT balloon":
		if started {
			return nil, says("The requested operation is not supported after starting the microVM.")
		}
		v.configured = true
		return nil, v.configure(resource, body)
	case "PUT actions":
		if started {
			return nil, says("The requested operation is not supported after starting the microVM.")
		}
		return nil, v.start()
	case "PATCH vm":
		return nil, v.setState(body)
	case "PUT snapshot":
		if name == "load" {
			return nil, v.load(body)
		}
		if !started {
			return nil, says("The requested operation is not supported before starting the " +
				"microVM.")
		}
		return nil, v.create(body)
	}
	return nil, fmt.Errorf("this stand-in does not know %s %s", method, path)
}

func (v *vmm) configure(resource string, body []byte) error {
	switch resource {
	case "machine-config":
		var c struct {
			Memory int64 `json:"mem_size_mib"`
		}
		if err := json.Unmarshal(body, &c); err != nil || c.Memory < 1 {
			return says("The memory size (MiB) is invalid.")
		}
		v.memory = c.Memory
	case "boot-source":
		if err := json.Unmarshal(body, &v.boot); err != nil {
			return err
		}
		for _, path := range []*string{&v.boot.Kernel, v.boot.Initrd} {
			if path == nil {
				continue
			}
			if f, err := os.Open(*path); err != nil {
				return says("The kernel or initrd file cannot be opened: %v", err)
			} else {
				_ = f.Close()
			}
		}
		if v.boot.Args != nil && len(*v.boot.Args) > 2048 {
			return says("The kernel command line is invalid: CommandLineOverflow")
		}
	case "drives":
		d := new(disk)
		if err := json.Unmarshal(body, d); err != nil {
			return err
		}
		if err := d.open(); err != nil {
			return err
		}
		v.drives = append(v.drives, d)
	case "vsock":
		s := new(vsock)
		if err := json.Unmarshal(body, s); err != nil {
			return err
		}
		s.fault = v.fault
		v.vsock = s
		return s.listen()
	}
	return nil
}
