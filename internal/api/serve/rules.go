package serve

import (
	"strings"

	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// patterns says in words what the patterns of proto/ permit.
var patterns = map[string]string{
	`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`: "is not 1 to 64 letters, digits, '.', '_' or '-', of which " +
		"the first is a letter or a digit",
	`^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$`: "is not 1 to 63 letters, digits, '.', '_' or '-', of which " +
		"the first is a letter or a digit",
	`^[a-z0-9][a-z0-9.-]{0,252}$`: "is not 1 to 253 small letters, digits, '.' or '-', of which " +
		"the first is a letter or a digit",
	`^[a-z0-9][a-z0-9._-]{0,62}$`: "is not 1 to 63 small letters, digits, '.', '_' or '-', of which " +
		"the first is a letter or a digit",
	`^[a-z][a-z0-9-]{0,31}$`: "is not 1 to 32 small letters, digits or '-', of which the first is a " +
		"letter",
	`^[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,254}$`: "is not the name of a template or an image, of at most " +
		"255 characters",
	`^[A-Za-z0-9][A-Za-z0-9._/-]*$`: "has other characters than letters, digits, '.', '_', '/' and " +
		"'-', or does not begin with a letter or a digit",
	`^[a-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)+$`: "is not a path of at least two names, such as " +
		"kubernetes/CLUSTER/NAMESPACE/NAME/UID",
	`^[a-z0-9][A-Za-z0-9._/-]*$`: "has other characters than letters, digits, '.', '_', '/' and '-', or does " +
		"not begin with a small letter or a digit",
	`^[A-Za-z0-9.*:/_-]+$`:            "is not a host, an address or a network, with or without a port",
	`^[A-Za-z0-9._:-]*$`:              "has other characters than letters, digits, '.', '_', ':' and '-'",
	`^[A-Za-z0-9_-]*$`:                "has other characters than letters, digits, '_' and '-'",
	`^[A-Za-z_][A-Za-z0-9_]*$`:        "is not the name of a variable",
	`^/[^\x00-\x1f\x7f]*$`:            "is not an absolute path",
	`^[^\x00-\x1f\x7f]*$`:             "has a control character",
	`^[^\x00-\x1f\x7f]+$`:             "is empty or has a control character",
	`^[^\x00]*$`:                      "has a zero byte",
	`^[a-z]{1,32}:([a-z]{1,32}|\*)$`:  "is not a scope, such as turns:run or sandboxes:*",
	`^s_[0-9a-v]{18}$`:                "is not the ID of a session, such as s_0123456789abcdefgh",
	`^sb_[0-9a-v]{18}$`:               "is not the ID of a sandbox, such as sb_0123456789abcdefgh",
	`^sn_[0-9a-v]{18}$`:               "is not the ID of a snapshot, such as sn_0123456789abcdefgh",
	`^tk_[0-9a-v]{18}$`:               "is not the ticket of a turn, such as tk_0123456789abcdefgh",
	`^ssh-ed25519 [A-Za-z0-9+/]{68}$`: "is not a public key, such as ssh-ed25519 AAAA…",
}

// sentence returns what is wrong with a field, in words that need no knowledge of regular
// expressions or of Protocol Buffers. It has no value of the request.
func sentence(b *protovalidate.Violation) string {
	switch id := b.Proto.GetRuleId(); id {
	case "required":
		if b.FieldDescriptor == nil {
			return "one of its forms is needed"
		}
		return "is missing"
	case "string.pattern":
		if text, ok := patterns[b.RuleValue.String()]; ok {
			return text
		}
		return "has a form that is not permitted"
	case "enum.defined_only":
		return "is not " + valuesOf(b.FieldDescriptor)
	case "repeated.unique":
		return "has an element twice"
	}
	text := b.Proto.GetMessage()
	if text == "" {
		return "breaks the rule " + b.Proto.GetRuleId()
	}
	return plain.Replace(text)
}

// plain replaces words of the library that a message of several fields does not need.
var plain = strings.NewReplacer("item(s)", "elements", "map must be", "must have",
	"greater than or equal to", "at least", "less than or equal to", "at most", "value must", "must")

// valuesOf lists the values of an enumeration.
func valuesOf(f protoreflect.FieldDescriptor) string {
	if f == nil || f.Enum() == nil {
		return "a known value"
	}
	var names []string
	for i := range f.Enum().Values().Len() {
		if v := f.Enum().Values().Get(i); v.Number() != 0 {
			names = append(names, string(v.Name()))
		}
	}
	if n := len(names) - 1; n > 0 {
		return strings.Join(names[:n], ", ") + " or " + names[n]
	}
	return strings.Join(names, "")
}
