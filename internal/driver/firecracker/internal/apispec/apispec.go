// Package apispec checks requests and answers against the definition of Firecracker's API, which
// its project publishes in OpenAPI 2. It is for tests.
package apispec

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"
)

//go:embed testdata/firecracker.yaml
var definition []byte

// A Spec is the definition. It is safe for concurrent use after Load.
type Spec struct {
	doc      map[string]any
	compiler *jsonschema.Compiler
	bodies   map[string]*jsonschema.Schema // of requests, by operation
	answers  map[string]*jsonschema.Schema // of answers, by operation and status; nil: no body
}

const location = "http://localhost/firecracker.json"

// Load reads the definition. Schemas of OpenAPI 2 are schemas of JSON Schema's draft 4 with
// additional keywords. Load rejects undefined fields, because Firecracker rejects unknown fields
// (serde, deny_unknown_fields), which the definition does not say.
func Load() (*Spec, error) {
	var parsed any
	if err := yaml.Unmarshal(definition, &parsed); err != nil {
		return nil, err
	}
	// By way of JSON, whose numbers the validator supports.
	b, err := json.Marshal(stringKeys(parsed))
	if err != nil {
		return nil, err
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	s := &Spec{bodies: map[string]*jsonschema.Schema{}, answers: map[string]*jsonschema.Schema{}}
	s.doc, _ = v.(map[string]any)
	for name, d := range object(s.doc, "definitions") {
		if schema, ok := d.(map[string]any); ok && schema["properties"] != nil &&
			schema["additionalProperties"] == nil {
			schema["additionalProperties"] = false
		} else if !ok {
			return nil, fmt.Errorf("definition %s is no object", name)
		}
	}
	s.compiler = jsonschema.NewCompiler()
	s.compiler.DefaultDraft(jsonschema.Draft4)
	if err := s.compiler.AddResource(location, s.doc); err != nil {
		return nil, err
	}
	return s, s.compile()
}

// compile compiles the schema of each body.
func (s *Spec) compile() error {
	for path, item := range object(s.doc, "paths") {
		for method, op := range item.(map[string]any) {
			key := strings.ToUpper(method) + " " + path
			at := "#/paths/" + escape(path) + "/" + method
			params, _ := op.(map[string]any)["parameters"].([]any)
			for i, p := range params {
				if p.(map[string]any)["in"] != "body" {
					continue
				}
				schema, err := s.compiler.Compile(fmt.Sprintf("%s%s/parameters/%d/schema", location,
					at, i))
				if err != nil {
					return fmt.Errorf("%s: %w", key, err)
				}
				s.bodies[key] = schema
			}
			for status, answer := range object(op.(map[string]any), "responses") {
				s.answers[key+" "+status] = nil
				if answer.(map[string]any)["schema"] == nil {
					continue
				}
				schema, err := s.compiler.Compile(location + at + "/responses/" + status +
					"/schema")
				if err != nil {
					return fmt.Errorf("%s: %w", key, err)
				}
				s.answers[key+" "+status] = schema
			}
		}
	}
	return nil
}

// Request checks a request.
func (s *Spec) Request(method, path string, body []byte) error {
	op, params, err := s.operation(method, path)
	if err != nil {
		return err
	}
	schema := s.bodies[op]
	if schema == nil {
		if len(body) > 0 {
			return fmt.Errorf("%s takes no body", op)
		}
		return nil
	}
	v, err := validate(schema, body)
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	// "The id of the guest drive" is in the path and in the body.
	for name, value := range params {
		if fields, ok := v.(map[string]any); ok && fields[name] != nil && fields[name] != value {
			return fmt.Errorf("%s: %s is %v in the body and %s in the path", op, name, fields[name],
				value)
		}
	}
	return nil
}

// Answer checks the answer to a request.
func (s *Spec) Answer(method, path string, status int, body []byte) error {
	op, _, err := s.operation(method, path)
	if err != nil {
		return err
	}
	schema, ok := s.answers[fmt.Sprintf("%s %d", op, status)]
	if !ok {
		if status < 400 {
			return fmt.Errorf("%s does not answer %d", op, status)
		}
		if schema, ok = s.answers[op+" default"]; !ok {
			return fmt.Errorf("%s does not answer %d", op, status)
		}
	}
	if schema == nil {
		if len(body) > 0 {
			return fmt.Errorf("%s: an answer %d has no body", op, status)
		}
		return nil
	}
	if _, err := validate(schema, body); err != nil {
		return fmt.Errorf("%s: answer %d: %w", op, status, err)
	}
	return nil
}

func validate(schema *jsonschema.Schema, body []byte) (any, error) {
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	return v, schema.Validate(v)
}

// operation returns the operation of a path, such as "PUT /drives/{drive_id}", and the values of
// its parameters.
func (s *Spec) operation(method, path string) (string, map[string]string, error) {
	for pattern, item := range object(s.doc, "paths") {
		params, ok := match(pattern, path)
		if !ok {
			continue
		}
		if item.(map[string]any)[strings.ToLower(method)] == nil {
			return "", nil, fmt.Errorf("%s is not defined for %s", method, pattern)
		}
		return method + " " + pattern, params, nil
	}
	return "", nil, fmt.Errorf("%s is not defined", path)
}

func match(pattern, path string) (map[string]string, bool) {
	want, have := strings.Split(pattern, "/"), strings.Split(path, "/")
	if len(want) != len(have) {
		return nil, false
	}
	params := map[string]string{}
	for i, w := range want {
		name, isParam := strings.CutPrefix(w, "{")
		switch {
		case isParam && have[i] != "":
			params[strings.TrimSuffix(name, "}")] = have[i]
		case w != have[i]:
			return nil, false
		}
	}
	return params, true
}

func object(m map[string]any, key string) map[string]any {
	v, _ := m[key].(map[string]any)
	return v
}

// escape makes a path a token of a JSON pointer in a URL (RFC 6901).
func escape(path string) string {
	return strings.NewReplacer("~", "~0", "/", "~1", "{", "%7B", "}", "%7D").Replace(path)
}

// stringKeys converts the keys of all maps to strings: YAML reads 204 as a number.
func stringKeys(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			v[k] = stringKeys(e)
		}
	case map[any]any:
		m := make(map[string]any, len(v))
		for k, e := range v {
			m[fmt.Sprint(k)] = stringKeys(e)
		}
		return m
	case []any:
		for i, e := range v {
			v[i] = stringKeys(e)
		}
	}
	return v
}
