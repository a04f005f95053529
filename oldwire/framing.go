package oldwire

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"

	"turnstone.dev/turnstone"
)

// request is the line that opens a call.
type request struct {
	Method string          `json:"method"`
	Params json.RawMessage `json:"params,omitempty"`
}

// response is the line that answers a call: exactly one of its fields is set.
type response struct {
	Result json.RawMessage `json:"result,omitempty"`
	Error  *wireError      `json:"error,omitempty"`
}

// wireError is a turnstone.Error as it crosses the wire; the cause is its text.
type wireError struct {
	Op      string `json:"op,omitempty"`
	Kind    string `json:"kind"`
	Subject string `json:"subject,omitempty"`
	Hint    string `json:"hint,omitempty"`
	Message string `json:"message,omitempty"`
}

// errLineTooLong means that the other side broke MaxLine.
var errLineTooLong = errors.New("the line is longer than the protocol allows")

// readLine returns the next line without its newline. It never holds more than
// limit bytes and one buffer of r; a stream that ends inside a line gives
// io.ErrUnexpectedEOF, one that ends before it io.EOF.
func readLine(r *bufio.Reader, limit int) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(line)+len(part) > limit {
			return nil, errLineTooLong
		}
		line = append(line, part...)
		switch {
		case err == nil:
			return line[:len(line)-1], nil
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF) && len(line) > 0:
			return nil, io.ErrUnexpectedEOF
		default:
			return nil, err
		}
	}
}

// writeLine writes v as one line of JSON, in one Write.
func writeLine(w io.Writer, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(b)+1 > MaxLine {
		return errLineTooLong
	}
	_, err = w.Write(append(b, '\n'))
	return err
}

// decodeRequest reads the line that opens a call.
func decodeRequest(r *bufio.Reader) (request, error) {
	var req request
	line, err := readLine(r, MaxLine)
	if err != nil {
		return req, err
	}
	if err := json.Unmarshal(line, &req); err != nil {
		return req, err
	}
	if req.Method == "" {
		return req, errors.New("a call without a method")
	}
	return req, nil
}

// decodeResponse reads the answer to a call into result, which may be nil.
func decodeResponse(r *bufio.Reader, result any) error {
	line, err := readLine(r, MaxLine)
	if err != nil {
		return err
	}
	var resp response
	if err := json.Unmarshal(line, &resp); err != nil {
		return &malformedError{err}
	}
	switch {
	case resp.Error != nil:
		return resp.Error.decode()
	case resp.Result == nil:
		return &malformedError{errors.New("an answer with neither result nor error")}
	case result == nil:
		return nil
	}
	if err := json.Unmarshal(resp.Result, result); err != nil {
		return &malformedError{err}
	}
	return nil
}

// malformedError marks an answer that is not the protocol's.
type malformedError struct{ err error }

func (e *malformedError) Error() string { return "malformed answer: " + e.err.Error() }
func (e *malformedError) Unwrap() error { return e.err }

func encodeError(err error) *wireError {
	var te *turnstone.Error
	if !errors.As(err, &te) {
		return &wireError{Kind: string(turnstone.Internal), Message: err.Error()}
	}
	we := &wireError{Op: te.Op, Kind: string(te.Kind), Subject: te.Subject, Hint: turnstone.HintOf(err)}
	if te.Err != nil {
		we.Message = te.Err.Error()
	}
	return we
}

// decode bounds every field: the text goes to a terminal and into receipts, and
// the sandbox wrote it.
func (e *wireError) decode() *turnstone.Error {
	te := &turnstone.Error{
		Op:      clip(e.Op, 100),
		Kind:    knownKind(e.Kind),
		Subject: clip(e.Subject, 1000),
		Hint:    clip(e.Hint, 1000),
	}
	if e.Message != "" {
		te.Err = errors.New(clip(e.Message, 4000))
	}
	return te
}

func knownKind(s string) turnstone.Kind {
	switch k := turnstone.Kind(s); k {
	case turnstone.Invalid, turnstone.NotFound, turnstone.Unavailable, turnstone.Exhausted,
		turnstone.Canceled, turnstone.Timeout, turnstone.Integrity, turnstone.Dead:
		return k
	}
	return turnstone.Internal
}

// clip cuts s to n bytes and replaces what could drive a terminal.
func clip(s string, n int) string {
	if len(s) > n {
		s = s[:n] + "…"
	}
	out := make([]rune, 0, len(s))
	for _, r := range s {
		if (r < ' ' && r != '\n' && r != '\t') || (r >= 0x7f && r < 0xa0) {
			r = '\uFFFD'
		}
		out = append(out, r)
	}
	return string(out)
}
