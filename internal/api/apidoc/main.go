// Apidoc writes the pages about the control API, docs/api.md and docs/openapi.json, from the
// compiled definitions in proto/: `make proto` runs it.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: apidoc IMAGE FOLDER")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "apidoc:", err)
		os.Exit(1)
	}
}

func run(image, folder string) error {
	b, err := os.ReadFile(image)
	if err != nil {
		return err
	}
	a, err := load(b)
	if err != nil {
		return err
	}
	page, err := a.markdown()
	if err != nil {
		return err
	}
	spec, err := a.openAPI()
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(folder, "api.md"), page, 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, "openapi.json"), spec, 0o644)
}

// An api is the part of the definitions that is for callers.
type api struct {
	services []protoreflect.ServiceDescriptor
	messages []protoreflect.MessageDescriptor // that the services use, in order of first use
	enums    []protoreflect.EnumDescriptor
	seen     map[protoreflect.FullName]bool
}

// load reads a FileDescriptorSet with comments.
func load(image []byte) (*api, error) {
	var set descriptorpb.FileDescriptorSet
	if err := proto.Unmarshal(image, &set); err != nil {
		return nil, err
	}
	files, err := protodesc.NewFiles(&set)
	if err != nil {
		return nil, err
	}
	a := &api{seen: map[protoreflect.FullName]bool{}}
	for _, name := range []string{"Sandbox", "Turn", "Session", "Template", "Pool"} {
		d, err := files.FindDescriptorByName(protoreflect.FullName("turnstone.v1." + name + "Service"))
		if err != nil {
			return nil, err
		}
		service, ok := d.(protoreflect.ServiceDescriptor)
		if !ok {
			return nil, fmt.Errorf("%s is no service", d.FullName())
		}
		a.services = append(a.services, service)
		for i := range service.Methods().Len() {
			a.use(service.Methods().Get(i).Input())
			a.use(service.Methods().Get(i).Output())
		}
	}
	d, err := files.FindDescriptorByName("turnstone.v1.Error") // no method mentions it
	if err != nil {
		return nil, err
	}
	m, ok := d.(protoreflect.MessageDescriptor)
	if !ok {
		return nil, fmt.Errorf("%s is no message", d.FullName())
	}
	a.use(m)
	return a, nil
}

// use adds a message and all that it mentions.
func (a *api) use(m protoreflect.MessageDescriptor) {
	if a.seen[m.FullName()] || wellKnown(m) {
		return
	}
	a.seen[m.FullName()] = true
	if !m.IsMapEntry() {
		a.messages = append(a.messages, m)
	}
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		if f.Message() != nil {
			a.use(f.Message())
		}
		if e := f.Enum(); e != nil && !a.seen[e.FullName()] {
			a.seen[e.FullName()] = true
			a.enums = append(a.enums, e)
		}
	}
}

func wellKnown(m protoreflect.MessageDescriptor) bool {
	return strings.HasPrefix(string(m.FullName()), "google.protobuf.")
}

// comment returns a descriptor's comment as one line.
func comment(d protoreflect.Descriptor) string {
	text := d.ParentFile().SourceLocations().ByDescriptor(d).LeadingComments
	return strings.Join(strings.Fields(text), " ")
}

func scopeOf(m protoreflect.MethodDescriptor) string {
	scope, _ := proto.GetExtension(m.Options(), v1.E_Scope).(string)
	return scope
}

// rulesOf returns the rules of a field; never nil.
func rulesOf(f protoreflect.FieldDescriptor) (*validate.FieldRules, error) {
	rules, err := protovalidate.ResolveFieldRules(f)
	if err != nil {
		return nil, err
	}
	if rules == nil {
		rules = &validate.FieldRules{}
	}
	return rules, nil
}
