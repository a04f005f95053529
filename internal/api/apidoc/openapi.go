package main

import (
	"bytes"
	"encoding/json"
	"fmt"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"google.golang.org/protobuf/reflect/protoreflect"

	"turnstone.dev/turnstone"
)

// object is a JSON object; encoding/json sorts its keys, so the file does not depend on a run.
type object = map[string]any

// openAPI returns the description of the API in OpenAPI 3.1, whose schemas are JSON Schema 2020-12.
func (a *api) openAPI() ([]byte, error) {
	paths, schemas, tags := object{}, object{}, []any{}
	for _, s := range a.services {
		tags = append(tags, object{"name": string(s.Name()), "description": comment(s)})
		for i := range s.Methods().Len() {
			m := s.Methods().Get(i)
			paths["/"+string(s.FullName())+"/"+string(m.Name())] = object{"post": operation(m)}
		}
	}
	for _, m := range a.messages {
		schema, err := messageSchema(m)
		if err != nil {
			return nil, err
		}
		schemas[string(m.Name())] = schema
	}
	for _, e := range a.enums {
		var values []any
		for i := range e.Values().Len() {
			values = append(values, string(e.Values().Get(i).Name()))
		}
		schemas[string(e.Name())] = object{"type": "string", "enum": values,
			"description": comment(e)}
	}
	schemas["ConnectError"] = connectError()
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	err := enc.Encode(object{
		"openapi": "3.1.0",
		"info": object{"title": "Turnstone's control API", "version": turnstone.Version,
			"description": "Generated from proto/turnstone/v1. See docs/api.md."},
		"tags": tags, "paths": paths,
		"security": []any{object{"token": []any{}}},
		"components": object{"schemas": schemas, "securitySchemes": object{
			"token": object{"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}}},
	})
	return out.Bytes(), err
}

func ref(name protoreflect.Name) object {
	return object{"$ref": "#/components/schemas/" + string(name)}
}

func operation(m protoreflect.MethodDescriptor) object {
	kind, text := "application/json", comment(m)
	if m.IsStreamingServer() {
		kind = "application/connect+json"
		text += " Request and answers are in frames: five bytes, of which the last four are the " +
			"length, then JSON. The schemas are those of one frame."
	}
	return object{
		"operationId": string(m.Parent().Name()) + "." + string(m.Name()),
		"tags":        []any{string(m.Parent().Name())}, "description": text,
		"x-turnstone-scope": scopeOf(m),
		"requestBody": object{"required": true,
			"content": object{kind: object{"schema": ref(m.Input().Name())}}},
		"responses": object{
			"200": object{"description": "The answer.",
				"content": object{kind: object{"schema": ref(m.Output().Name())}}},
			"default": object{"description": "An error.",
				"content": object{"application/json": object{"schema": object{
					"$ref": "#/components/schemas/ConnectError"}}}},
		},
	}
}

// connectError is the body of an error in the Connect protocol.
func connectError() object {
	return object{"type": "object", "required": []any{"code"}, "properties": object{
		"code":    object{"type": "string", "description": "The Connect code."},
		"message": object{"type": "string"},
		"details": object{"type": "array", "items": object{"type": "object",
			"required": []any{"type", "value"}, "properties": object{
				"type":  object{"type": "string", "examples": []any{"turnstone.v1.Error"}},
				"value": object{"type": "string", "contentEncoding": "base64"},
				"debug": ref("Error"),
			}}},
	}}
}

func messageSchema(m protoreflect.MessageDescriptor) (object, error) {
	properties, required := object{}, []any{}
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		rules, err := rulesOf(f)
		if err != nil {
			return nil, err
		}
		schema := fieldSchema(f, rules)
		if text := comment(f); text != "" {
			schema["description"] = text
		}
		if must(f, rules) {
			required = append(required, f.JSONName())
		}
		properties[f.JSONName()] = schema
	}
	out := object{"type": "object", "properties": properties, "additionalProperties": false}
	if text := comment(m); text != "" {
		out["description"] = text
	}
	if len(required) > 0 {
		out["required"] = required
	}
	for i := range m.Oneofs().Len() {
		addOneof(out, m.Oneofs().Get(i))
	}
	return out, nil
}

// addOneof permits at most one of the fields.
func addOneof(schema object, o protoreflect.OneofDescriptor) {
	if o.IsSynthetic() {
		return
	}
	depend := object{}
	for i := range o.Fields().Len() {
		var others []any
		for j := range o.Fields().Len() {
			if i != j {
				others = append(others, object{"required": []any{o.Fields().Get(j).JSONName()}})
			}
		}
		depend[o.Fields().Get(i).JSONName()] = object{"not": object{"anyOf": others}}
	}
	schema["dependentSchemas"] = depend
}

// must reports whether a field without a value breaks its rules.
func must(f protoreflect.FieldDescriptor, rules *validate.FieldRules) bool {
	if rules.GetIgnore() == validate.Ignore_IGNORE_IF_ZERO_VALUE || f.ContainingOneof() != nil {
		return rules.GetRequired()
	}
	return rules.GetRequired() || rules.GetString().GetMinLen() > 0 ||
		rules.GetBytes().GetLen() > 0 || rules.GetRepeated().GetMinItems() > 0 ||
		rules.GetUint32().GetGte() > 0 || rules.GetString().HasPattern() && !emptyMatches(rules)
}

func fieldSchema(f protoreflect.FieldDescriptor, rules *validate.FieldRules) object {
	switch {
	case f.IsMap():
		r := rules.GetMap()
		out := object{"type": "object",
			"additionalProperties": oneSchema(f.MapValue(), r.GetValues())}
		if r.HasMaxPairs() {
			out["maxProperties"] = r.GetMaxPairs()
		}
		if r.HasKeys() {
			out["propertyNames"] = oneSchema(f.MapKey(), r.GetKeys())
		}
		return out
	case f.IsList():
		r := rules.GetRepeated()
		out := object{"type": "array", "items": oneSchema(f, r.GetItems())}
		if r.HasMaxItems() {
			out["maxItems"] = r.GetMaxItems()
		}
		if r.GetMinItems() > 0 {
			out["minItems"] = r.GetMinItems()
		}
		if r.GetUnique() {
			out["uniqueItems"] = true
		}
		return out
	}
	return oneSchema(f, rules)
}

// oneSchema is the schema of one value, in the JSON encoding of protobuf.
func oneSchema(f protoreflect.FieldDescriptor, rules *validate.FieldRules) object {
	switch f.Kind() {
	case protoreflect.MessageKind:
		switch f.Message().FullName() {
		case "google.protobuf.Timestamp":
			return object{"type": "string", "format": "date-time"}
		case "google.protobuf.Duration":
			return object{"type": "string", "pattern": `^-?[0-9]+(\.[0-9]{1,9})?s$`,
				"examples": []any{"3600s"}}
		}
		return ref(f.Message().Name())
	case protoreflect.EnumKind:
		return ref(f.Enum().Name())
	case protoreflect.BoolKind:
		return object{"type": "boolean"}
	case protoreflect.Uint32Kind:
		out := object{"type": "integer", "minimum": rules.GetUint32().GetGte()}
		if r := rules.GetUint32(); r.HasLte() {
			out["maximum"] = r.GetLte()
		}
		return out
	case protoreflect.Uint64Kind:
		out := object{"type": []any{"string", "integer"}, "pattern": "^[0-9]+$", "minimum": 0}
		if r := rules.GetUint64(); r.HasLte() {
			out["maximum"] = r.GetLte()
		}
		return out
	case protoreflect.BytesKind:
		return bytesSchema(rules.GetBytes())
	}
	return stringSchema(rules)
}

func bytesSchema(r *validate.BytesRules) object {
	out := object{"type": "string", "contentEncoding": "base64"}
	if n := max(r.GetLen(), r.GetMaxLen()); n > 0 {
		out["maxLength"] = (n + 2) / 3 * 4
	}
	if r.GetLen() > 0 {
		out["minLength"] = (r.GetLen()*4 + 2) / 3 // without padding
	}
	return out
}

func stringSchema(rules *validate.FieldRules) object {
	out, r := object{"type": "string"}, rules.GetString()
	if r.HasMaxBytes() {
		out["maxLength"] = r.GetMaxBytes()
	}
	if r.GetMinLen() > 0 {
		out["minLength"] = r.GetMinLen()
	}
	if p := r.GetPattern(); p != "" {
		if rules.GetIgnore() == validate.Ignore_IGNORE_IF_ZERO_VALUE {
			p = fmt.Sprintf("^$|%s", p)
		}
		out["pattern"] = p
	}
	return out
}
