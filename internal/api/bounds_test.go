package api

import (
	"regexp/syntax"
	"testing"
	"unicode/utf8"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/reflect/protoreflect"

	"turnstone.dev/turnstone/internal/api/apitest"
)

// TestRequestsAreBounded computes the size of the largest valid message of each type: every string,
// list and map of a request has a bound, and what is largest still fits.
func TestRequestsAreBounded(t *testing.T) {
	requests, _ := apitest.Messages(t)
	largest := 0
	for _, m := range requests {
		n := maxSize(t, m)
		largest = max(largest, n)
		if n > MaxRequest {
			t.Errorf("a valid %s may have %d bytes; the bound is %d", m.Name(), n, MaxRequest)
		}
	}
	t.Logf("the largest request has %d bytes", largest)
}

// TestPagesFit: a full page of sandboxes, the largest objects, fits into an answer.
func TestPagesFit(t *testing.T) {
	var create protoreflect.MessageDescriptor
	requests, _ := apitest.Messages(t)
	for _, m := range requests {
		if m.Name() == "CreateSandboxRequest" {
			create = m
		}
	}
	// What a sandbox repeats of its request, and 2 KiB for all other fields.
	fields := create.Fields()
	one := 2048 + fieldSize(t, fields.ByName("metadata")) + fieldSize(t, fields.ByName("image")) +
		fieldSize(t, fields.ByName("name")) + fieldSize(t, fields.ByName("context_id"))
	const page = 100
	// JSON doubles a string at most: the rules permit no control characters.
	if n := page * one * 2; n > MaxAnswer {
		t.Errorf("a page of %d sandboxes may have %d bytes; the bound is %d", page, n, MaxAnswer)
	}
}

// maxSize returns an upper bound of the encoded size of a valid m.
func maxSize(t *testing.T, m protoreflect.MessageDescriptor) (n int) {
	t.Helper()
	switch m.FullName() {
	case "google.protobuf.Timestamp", "google.protobuf.Duration":
		return 24
	}
	largest := map[protoreflect.OneofDescriptor]int{} // of a oneof one field is set
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		if of := f.ContainingOneof(); of != nil {
			largest[of] = max(largest[of], fieldSize(t, f))
			continue
		}
		n += fieldSize(t, f)
	}
	for _, size := range largest {
		n += size
	}
	return n
}

const header = 8 // of a field: its number, and a length

func fieldSize(t *testing.T, f protoreflect.FieldDescriptor) int {
	t.Helper()
	rules, err := protovalidate.ResolveFieldRules(f)
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case f.IsMap():
		m := rules.GetMap()
		if !m.HasMaxPairs() {
			t.Errorf("%s has no bound of its pairs", f.FullName())
		}
		return int(m.GetMaxPairs()) * (header + oneSize(t, f.MapKey(), m.GetKeys()) +
			oneSize(t, f.MapValue(), m.GetValues()))
	case f.IsList():
		r := rules.GetRepeated()
		if !r.HasMaxItems() {
			t.Errorf("%s has no bound of its items", f.FullName())
		}
		return int(r.GetMaxItems()) * oneSize(t, f, r.GetItems())
	}
	return oneSize(t, f, rules)
}

func oneSize(t *testing.T, f protoreflect.FieldDescriptor, rules *validate.FieldRules) int {
	t.Helper()
	switch f.Kind() {
	case protoreflect.MessageKind:
		return header + maxSize(t, f.Message())
	case protoreflect.StringKind:
		s := rules.GetString()
		if s.HasMaxBytes() {
			return header + int(s.GetMaxBytes())
		}
		n, ok := patternSize(t, s.GetPattern())
		if !ok {
			t.Errorf("%s has no bound of its bytes", f.FullName())
		}
		return header + n
	case protoreflect.BytesKind:
		b := rules.GetBytes()
		if !b.HasLen() && !b.HasMaxLen() {
			t.Errorf("%s has no bound of its bytes", f.FullName())
		}
		return header + int(max(b.GetLen(), b.GetMaxLen()))
	}
	return header + 10
}

// patternSize returns how many bytes match a pattern at most, if that is bounded and the pattern is
// anchored.
func patternSize(t *testing.T, pattern string) (int, bool) {
	t.Helper()
	if len(pattern) < 2 || pattern[0] != '^' || pattern[len(pattern)-1] != '$' {
		return 0, false
	}
	re, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		t.Fatal(err)
	}
	return longest(re)
}

func longest(re *syntax.Regexp) (n int, ok bool) {
	switch re.Op {
	case syntax.OpLiteral:
		return 4 * len(re.Rune), true
	case syntax.OpCharClass: // the last rune is the largest
		return utf8.RuneLen(re.Rune[len(re.Rune)-1]), true
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		return utf8.UTFMax, true
	case syntax.OpStar, syntax.OpPlus:
		return 0, false
	case syntax.OpRepeat:
		n, ok := longest(re.Sub[0])
		return n * re.Max, ok && re.Max >= 0
	case syntax.OpAlternate, syntax.OpConcat, syntax.OpCapture, syntax.OpQuest:
		for _, sub := range re.Sub {
			m, ok := longest(sub)
			if !ok {
				return 0, false
			}
			n += m
		}
	}
	return n, true
}
