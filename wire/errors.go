package wire

import (
	"errors"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/brief"
)

// Error codes of JSON-RPC 2.0, as CDP uses them.
const (
	codeParse          = -32700
	codeInvalidRequest = -32600
	codeMethodNotFound = -32601
	codeInvalidParams  = -32602
	codeServer         = -32000
)

// replyError is an error in its wire form: CDP's format with the parts of the typed error as its
// data.
type replyError struct {
	Code    int        `json:"code"`
	Message string     `json:"message"`
	Data    *errorData `json:"data,omitempty"`
}

type errorData struct {
	Op      string `json:"op,omitempty"`
	Kind    string `json:"kind"`
	Subject string `json:"subject,omitempty"`
	Hint    string `json:"hint,omitempty"`
	Cause   string `json:"cause,omitempty"`
}

func encodeError(err error) *replyError {
	re := &replyError{Code: codeServer, Message: err.Error()}
	var te *turnstone.Error
	if !errors.As(err, &te) {
		re.Data = &errorData{Kind: string(turnstone.KindInternal)}
		return re
	}
	re.Data = &errorData{Op: string(te.Op), Kind: string(te.Kind), Subject: te.Subject,
		Hint: turnstone.HintOf(err)}
	if te.Err != nil {
		re.Data.Cause = te.Err.Error()
	}
	if te.Kind == turnstone.KindInvalid {
		re.Code = codeInvalidParams
	}
	return re
}

// decode bounds every field because the sandbox wrote the text and the text goes to a terminal and
// into receipts.
func (e *replyError) decode(method string) *turnstone.Error {
	te := turnstone.NewError(turnstone.Op(method), turnstone.KindInternal, "", nil)
	cause := e.Message
	if d := e.Data; d != nil {
		te.Kind, te.Subject, te.Hint = knownKind(d.Kind), clip(d.Subject, 1000), clip(d.Hint, 1000)
		cause = d.Cause
		if d.Op != "" {
			te.Op = turnstone.Op(clip(d.Op, 100))
		}
		if cause == "" && te.Subject == "" {
			cause = e.Message
		}
	}
	if cause != "" {
		te.Err = errors.New(clip(cause, 4000))
	}
	return te
}

func knownKind(s string) turnstone.Kind {
	switch k := turnstone.Kind(s); k {
	case turnstone.KindInvalid, turnstone.KindNotFound, turnstone.KindUnavailable,
		turnstone.KindExhausted, turnstone.KindCanceled, turnstone.KindTimeout,
		turnstone.KindIntegrity, turnstone.KindDead, turnstone.KindDenied:
		return k
	}
	return turnstone.KindInternal
}

// clip cuts s to n bytes and replaces characters that could control a terminal.
func clip(s string, n int) string {
	s = brief.Clip(s, n)
	out := make([]rune, 0, len(s))
	for _, r := range s {
		if (r < ' ' && r != '\n' && r != '\t') || (r >= 0x7f && r < 0xa0) {
			r = '\uFFFD'
		}
		out = append(out, r)
	}
	return string(out)
}
