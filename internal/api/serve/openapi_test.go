package serve

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"turnstone.dev/turnstone/internal/api"
	"turnstone.dev/turnstone/internal/api/apitest"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
)

// openAPI returns the published description, and the schemas in it by name.
func openAPI(t *testing.T) (all map[string]any, schema func(name string) *jsonschema.Schema) {
	t.Helper()
	b, err := os.ReadFile("../../../docs/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	all, ok := doc.(map[string]any)
	if !ok {
		t.Fatalf("openapi.json is %T", doc)
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.AssertFormat()
	if err := c.AddResource("openapi.json", doc); err != nil {
		t.Fatal(err)
	}
	return all, func(name string) *jsonschema.Schema {
		s, err := c.Compile("openapi.json#/components/schemas/" + name)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
}

// TestOpenAPI: the description has each method for callers and no other, and its schemas accept
// what the server accepts.
func TestOpenAPI(t *testing.T) {
	all, schema := openAPI(t)
	paths, ok := all["paths"].(map[string]any)
	if !ok {
		t.Fatal("there are no paths")
	}
	_, names, methods := every(nil, nil)
	for _, name := range names {
		callers := api.ScopeOf(connect.Spec{Schema: methods[name]}) != ""
		if _, ok := paths[name]; ok != callers {
			t.Errorf("%s: described: %v, for callers: %v", name, ok, callers)
		}
		delete(paths, name)
		if !callers {
			continue
		}
		m := apitest.MessageType(t, methods[name].Input()).New()
		apitest.Fill(m)
		if err := check(t, schema(string(methods[name].Input().Name())), m.Interface()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		answer := apitest.MessageType(t, methods[name].Output()).New()
		apitest.Fill(answer)
		if err := check(t, schema(string(methods[name].Output().Name())),
			answer.Interface()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name := range paths {
		t.Errorf("%s is described and does not exist", name)
	}
}

func check(t *testing.T, s *jsonschema.Schema, m proto.Message) error {
	t.Helper()
	b, err := protojson.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	return s.Validate(value)
}

// TestOpenAPIRejects: the schemas and the server agree about these requests.
func TestOpenAPIRejects(t *testing.T) {
	_, schema := openAPI(t)
	create := schema("CreateSandboxRequest")
	key := strings.Repeat("A", 43) + "="
	client := `"client":{"clientPublicKey":"` + key + `","nonce":"` + key + `"}`
	for body, good := range map[string]bool{
		`{` + client + `}`: true,
		`{` + client + `,"image":"python:3.12","timeout":"3600s","env":{"A":"b"}}`: true,
		`{` + client + `,"machine":{"cpus":2,"memory":"1073741824"}}`:              true,
		`{` + client + `,"name":"","contextId":""}`:                                true,
		`{}`:                                                          true,
		`{"client":{}}`:                                               false,
		`{` + client + `,"netwrok":{}}`:                               false,
		`{` + client + `,"name":"../x"}`:                              false,
		`{` + client + `,"env":{"A=":"b"}}`:                           false,
		`{` + client + `,"machine":{"cpus":65}}`:                      false,
		`{` + client + `,"machine":{"memory":"x"}}`:                   false,
		`{` + client + `,"timeout":"an hour"}`:                        false,
		`{` + client + `,"image":"a","template":"b"}`:                 false,
		`{` + client + `,"network":{"allow":["a b"]}}`:                false,
		`{"client":{"clientPublicKey":"AAAA","nonce":"` + key + `"}}`: false,
	} {
		value, err := jsonschema.UnmarshalJSON(strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if err := create.Validate(value); (err == nil) != good {
			t.Errorf("the schema says of %s: %v", body, err)
		}
		var r v1.CreateSandboxRequest
		err = strictJSON{}.Unmarshal([]byte(body), &r)
		if err == nil {
			err = Validate("test", &r)
		}
		if (err == nil) != good {
			t.Errorf("the server says of %s: %v", body, err)
		}
	}
}
