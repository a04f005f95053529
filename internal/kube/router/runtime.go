package router

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"path"
	"strconv"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/kube/container"
	"turnstone.dev/turnstone/wire"
)

// Bounds of the runtime's calls.
const (
	maxBody    = 1 << 20
	maxOutput  = 8 << 20 // of each of both; the rest is read and dropped
	maxEntries = 20_000
	entrySize  = 512 // of an entry of a list in memory, without its name
	usualTime  = 300 * time.Second
	mostTime   = time.Hour
	maxLogs    = 1 << 20 // of each of both outputs: a sandbox keeps no more
	logsTime   = time.Minute
	timedOut   = 124 // the status of a command whose time is up
)

// A box is the sandbox of a request.
type box struct {
	client  *wire.Client
	workdir string // in which relative paths begin

	namespace string
	kept      *shares // of bytes of answers
}

// keeps returns what a call may collect.
func keeps(ctx context.Context) *kept {
	b, _ := ctx.Value(boxKey{}).(box)
	return &kept{of: b.kept, namespace: b.namespace}
}

type boxKey struct{}

func newContext(ctx context.Context, b box) context.Context {
	return context.WithValue(ctx, boxKey{}, b)
}

// runtime answers the calls of agent-sandbox's runtime in a sandbox in which it does not run.
func runtime() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, map[string]string{"status": "ok", "message": "Sandbox Runtime is active."})
	})
	mux.HandleFunc("POST /execute", call(execute))
	mux.HandleFunc("POST /upload", call(upload))
	mux.HandleFunc("GET /download/{path...}", call(download))
	mux.HandleFunc("GET /list/{path...}", call(list))
	mux.HandleFunc("GET /exists/{path...}", call(exists))
	mux.HandleFunc("GET /logs", call(logs))
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		refuse(w, http.StatusBadGateway, "nothing listens at the port of the sandbox")
	})
	return mux
}

// call makes a call in the request's channel, and answers its error.
func call(f func(ctx context.Context, c *wire.Client, w http.ResponseWriter, r *http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		b, ok := r.Context().Value(boxKey{}).(box)
		if !ok {
			refuse(w, http.StatusInternalServerError, "no sandbox")
			return
		}
		err := f(r.Context(), b.client, w, r)
		if err == nil {
			return
		}
		switch turnstone.KindOf(err) {
		case turnstone.KindNotFound:
			refuse(w, http.StatusNotFound, "File not found")
		case turnstone.KindInvalid:
			refuse(w, http.StatusBadRequest, text(err))
		case turnstone.KindExhausted:
			refuse(w, http.StatusInsufficientStorage, text(err))
		default:
			refuse(w, http.StatusInternalServerError, text(err))
		}
	}
}

func bad(what string) error {
	return turnstone.Errorf("router.call", turnstone.KindInvalid, "the request", "%s", what)
}

// execute runs a command of a shell.
func execute(ctx context.Context, c *wire.Client, w http.ResponseWriter, r *http.Request) error {
	var q struct {
		Command string   `json:"command"`
		Timeout *float64 `json:"timeout_seconds"`
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&q); err != nil {
		return bad("is not JSON with a command")
	}
	if q.Command == "" || strings.ContainsRune(q.Command, 0) {
		return bad("has no command, or one with a zero byte")
	}
	life := usualTime
	if q.Timeout != nil {
		if !(*q.Timeout > 0) {
			return bad("has a timeout that is not above 0")
		}
		life = mostTime
		if *q.Timeout < mostTime.Seconds() {
			life = time.Duration(*q.Timeout * float64(time.Second))
		}
	}
	limited, cancel := context.WithTimeout(ctx, life)
	defer cancel()
	has := keeps(ctx)
	defer has.leave()
	out, errs := &head{kept: has}, &head{kept: has}
	ended, err := c.Start(limited, wire.ProcessStartParams{Argv: []string{"/bin/sh", "-c", q.Command},
		KillOnDisconnect: true}, wire.Stdio{Out: out, Err: errs})
	a := map[string]any{"stdout": out.text(), "stderr": errs.text(), "exit_code": ended.Exit.ExitCode}
	switch {
	case ctx.Err() != nil:
		return nil // its caller has left
	case limited.Err() != nil:
		a["exit_code"], a["timed_out"] = timedOut, true
	case turnstone.KindOf(err) == turnstone.KindNotFound:
		a["stderr"], a["exit_code"] = "Failed to execute command: "+text(err), 1
	case err != nil:
		return err
	}
	answer(w, http.StatusOK, a)
	return nil
}

// logs answers the end of what the container has written, or, with ?previous=true, the one before it.
func logs(ctx context.Context, c *wire.Client, w http.ResponseWriter, r *http.Request) error {
	most := int64(maxLogs)
	if text := r.URL.Query().Get("bytes"); text != "" {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 1 || n > maxLogs {
			return bad(fmt.Sprintf("has bytes that are not 1 to %d", maxLogs))
		}
		most = n
	}
	limited, cancel := context.WithTimeout(ctx, logsTime)
	defer cancel()
	id, restarts, err := container.Last(limited, c, r.URL.Query().Get("previous") == "true")
	if err != nil {
		return err
	}
	if id == "" {
		refuse(w, http.StatusNotFound, "the sandbox knows no such process")
		return nil
	}
	has := keeps(ctx)
	defer has.leave()
	if !has.take(int(2 * most)) {
		return turnstone.Errorf("router.logs", turnstone.KindExhausted, "the router", "has no room for the output now")
	}
	o, err := container.Tail(limited, c, id, most)
	if err != nil {
		return err
	}
	a := map[string]any{"stdout": o.Stdout, "stderr": o.Stderr, "running": o.Exit == nil, "restarts": restarts}
	if o.Exit != nil {
		a["exit_code"] = o.Exit.ExitCode
	}
	answer(w, http.StatusOK, a)
	return nil
}

// A head keeps the beginning of what is written to it, as long as there is room for it.
type head struct {
	b    bytes.Buffer
	kept *kept
	full bool
}

func (h *head) Write(b []byte) (int, error) {
	some := min(len(b), maxOutput-h.b.Len())
	if h.full = h.full || !h.kept.take(some); !h.full {
		h.b.Write(b[:some])
	}
	return len(b), nil
}

func (h *head) text() string { return strings.ToValidUTF8(h.b.String(), "\uFFFD") }

// upload writes the file of a form.
func upload(ctx context.Context, c *wire.Client, w http.ResponseWriter, r *http.Request) error {
	form, err := r.MultipartReader()
	if err != nil {
		return bad("is not a form with a file")
	}
	for {
		part, err := form.NextRawPart()
		if err != nil {
			return bad("has no file")
		}
		if part.FormName() != "file" {
			continue
		}
		_, params, err := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
		if err != nil || params["filename"] == "" {
			return bad("has a file without a name")
		}
		name, err := place(ctx, params["filename"])
		if err != nil {
			return err
		}
		if err := c.Feed(part, func(id wire.StreamID) error {
			_, err := c.FileSystemWrite(ctx, &wire.FileSystemWriteParams{Path: name, Stream: id, Parents: true})
			return err
		}); err != nil {
			return err
		}
		answer(w, http.StatusOK, map[string]string{"message": "File '" + clip(params["filename"]) + "' uploaded successfully."})
		return nil
	}
}

// place returns the absolute path of a name below the sandbox's working directory.
func place(ctx context.Context, name string) (string, error) {
	const longest = 4096
	if strings.ContainsRune(name, 0) || len(name) > longest {
		return "", bad("names no file")
	}
	b, _ := ctx.Value(boxKey{}).(box)
	return path.Join("/", b.workdir, path.Clean("/"+name)), nil
}

func stat(ctx context.Context, c *wire.Client, r *http.Request) (string, *wire.FileSystemFileInfo, error) {
	name, err := place(ctx, r.PathValue("path"))
	if err != nil {
		return "", nil, err
	}
	i, err := c.FileSystemStat(ctx, &wire.FileSystemStatParams{Path: name})
	if err != nil {
		return name, nil, err
	}
	return name, &i.File, nil
}

// download answers a file.
func download(ctx context.Context, c *wire.Client, w http.ResponseWriter, r *http.Request) error {
	name, i, err := stat(ctx, c, r)
	if err != nil {
		return err
	}
	if i.Type != wire.FileSystemFileInfoTypeFile {
		refuse(w, http.StatusNotFound, "File not found")
		return nil
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	began := &started{w: w}
	id := c.NewStream()
	from, err := c.Receiver(id)
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }()
	done := make(chan error, 1)
	go func() {
		_, err := c.FileSystemRead(ctx, &wire.FileSystemReadParams{Path: name, Stream: id})
		if err != nil {
			_ = from.Close()
		}
		done <- err
	}()
	_, err = io.Copy(began, struct{ io.Reader }{from})
	if err != nil {
		_ = from.Close()
	}
	if failed := <-done; failed != nil {
		err = failed
	}
	if err != nil && began.has {
		panic(http.ErrAbortHandler) // its caller would take what it has for the whole
	}
	return err
}

// A started notes whether something was written.
type started struct {
	w   io.Writer
	has bool
}

func (s *started) Write(b []byte) (int, error) { s.has = true; return s.w.Write(b) }

// list answers the entries of a directory.
func list(ctx context.Context, c *wire.Client, w http.ResponseWriter, r *http.Request) error {
	name, i, err := stat(ctx, c, r)
	if turnstone.KindOf(err) == turnstone.KindNotFound || err == nil && i.Type != wire.FileSystemFileInfoTypeDirectory {
		refuse(w, http.StatusNotFound, "Path is not a directory")
		return nil
	}
	if err != nil {
		return err
	}
	all, has := []map[string]any{}, keeps(ctx)
	defer has.leave()
	for after, more := "", true; more && len(all) < maxEntries; {
		res, err := c.FileSystemList(ctx, &wire.FileSystemListParams{Path: name, After: after})
		if err != nil {
			return err
		}
		for n := range res.Entries {
			if !has.take(entrySize + len(res.Entries[n].Name)) {
				return turnstone.Errorf("router.list", turnstone.KindExhausted, "the router", "has no room for the list now")
			}
			all = append(all, entry(&res.Entries[n]))
			after = res.Entries[n].Name
		}
		more = res.More && len(res.Entries) > 0
	}
	answer(w, http.StatusOK, all)
	return nil
}

// entry describes a file as agent-sandbox's runtime does.
func entry(f *wire.FileSystemFileInfo) map[string]any {
	kind := "file"
	if f.Type == wire.FileSystemFileInfoTypeDirectory {
		kind = "directory"
	}
	at, _ := time.Parse(time.RFC3339Nano, f.Modified)
	return map[string]any{"name": f.Name, "size": f.Size, "type": kind,
		"mod_time": float64(at.UnixNano()) / float64(time.Second)}
}

// exists answers whether there is something at a path.
func exists(ctx context.Context, c *wire.Client, w http.ResponseWriter, r *http.Request) error {
	_, _, err := stat(ctx, c, r)
	if err != nil && turnstone.KindOf(err) != turnstone.KindNotFound {
		return err
	}
	answer(w, http.StatusOK, map[string]any{"path": r.PathValue("path"), "exists": err == nil})
	return nil
}

// answer writes JSON.
func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

// refuse writes an error, in the form of the runtime and of the router.
func refuse(w http.ResponseWriter, status int, why string) {
	answer(w, status, map[string]string{"message": why, "detail": why})
}

func text(err error) string {
	var e *turnstone.Error
	if errors.As(err, &e) && e.Err != nil {
		return clip(e.Subject + ": " + e.Err.Error())
	}
	return "the sandbox has a fault"
}

func clip(s string) string {
	const most = 300
	return strings.ToValidUTF8(s[:min(len(s), most)], "?")
}
