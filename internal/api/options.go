package api

import (
	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/lazyregexp"
)

// templateName is the form of a template's name in the API, where everything else is an image.
var templateName = lazyregexp.New(`^[a-z0-9][a-z0-9._-]{0,62}$`)

// IsTemplateName reports whether a request can have name as its template's name.
func IsTemplateName(name string) bool { return templateName.MatchString(name) }

// Bounds of messages in bytes, after decompression. A test computes that no valid request, and no
// full page, is larger.
const (
	MaxRequest = 256 << 10
	MaxAnswer  = 4 << 20
)

// ClientOptions are the options of every client of the API. FromConnect converts its errors.
func ClientOptions() []connect.ClientOption {
	return []connect.ClientOption{
		connect.WithReadMaxBytes(MaxAnswer), connect.WithSendMaxBytes(MaxRequest),
		connect.WithAcceptCompression(Compression, Gunzip(MaxAnswer), Gzip),
	}
}

// ScopeOf returns the scope that a token needs for a procedure. It is empty for a procedure that is
// not for callers, which a gateway refuses.
func ScopeOf(s connect.Spec) string {
	m, ok := s.Schema.(protoreflect.MethodDescriptor)
	if !ok {
		return ""
	}
	scope, _ := proto.GetExtension(m.Options(), v1.E_Scope).(string)
	return scope
}
