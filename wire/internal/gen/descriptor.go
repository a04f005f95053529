package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// A protocol is a description in the Chrome DevTools Protocol's format with four additional keys:
// encoding (base64), direction (of a stream, from the agent's point of view), distinct (absent
// differs from zero) and host (only the host may send the command).
type protocol struct {
	Version struct{ Major, Minor string } `json:"version"`
	Domains []*domain                     `json:"domains"`
}

type domain struct {
	Domain       string     `json:"domain"`
	Description  string     `json:"description"`
	Dependencies []string   `json:"dependencies,omitempty"`
	Types        []*typ     `json:"types,omitempty"`
	Commands     []*command `json:"commands,omitempty"`
	Events       []*event   `json:"events,omitempty"`
}

type typ struct {
	ID          string   `json:"id"`
	Description string   `json:"description"`
	Type        string   `json:"type"`
	Enum        []string `json:"enum,omitempty"`
	Properties  []*prop  `json:"properties,omitempty"`
}

type command struct {
	Name        string  `json:"name"`
	Description string  `json:"description"`
	Host        bool    `json:"host,omitempty"`
	Parameters  []*prop `json:"parameters,omitempty"`
	Returns     []*prop `json:"returns,omitempty"`
}

type event struct {
	Name        string  `json:"name"`
	Description string  `json:"description"`
	Parameters  []*prop `json:"parameters,omitempty"`
}

type prop struct {
	Name        string   `json:"name"`
	Description string   `json:"description"`
	Type        string   `json:"type,omitempty"`
	Ref         string   `json:"$ref,omitempty"`
	Items       *item    `json:"items,omitempty"`
	Enum        []string `json:"enum,omitempty"`
	Optional    bool     `json:"optional,omitempty"`
	Encoding    string   `json:"encoding,omitempty"`
	Direction   string   `json:"direction,omitempty"`
	Distinct    bool     `json:"distinct,omitempty"`
}

type item struct {
	Type string `json:"type,omitempty"`
	Ref  string `json:"$ref,omitempty"`
}

// streamRef is the type of stream numbers, which package wire defines.
const streamRef = "IO.StreamId"

// parse decodes a description and checks all of it: an unknown key is an error.
func parse(text []byte) (*protocol, error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	var p protocol
	if err := dec.Decode(&p); err != nil {
		return nil, err
	}
	types := p.types()
	for _, d := range p.Domains {
		if d.Description == "" {
			return nil, fmt.Errorf("%s: no description", d.Domain)
		}
		for _, t := range d.Types {
			if err := checkProps(types, d, t.ID, t.Description, t.Properties); err != nil {
				return nil, err
			}
		}
		for _, c := range d.Commands {
			if err := checkProps(types, d, c.Name, c.Description, c.Parameters); err != nil {
				return nil, err
			}
			if err := checkProps(types, d, c.Name, c.Description, c.Returns); err != nil {
				return nil, err
			}
		}
		for _, e := range d.Events {
			if err := checkProps(types, d, e.Name, e.Description, e.Parameters); err != nil {
				return nil, err
			}
		}
	}
	return &p, nil
}

func checkProps(types map[string]*typ, d *domain, owner, description string, props []*prop) error {
	where := d.Domain + "." + owner
	if description == "" {
		return fmt.Errorf("%s: no description", where)
	}
	seen := make(map[string]bool)
	for _, p := range props {
		ref := p.Ref
		if p.Items != nil {
			ref = p.Items.Ref
		}
		switch {
		case p.Description == "":
			return fmt.Errorf("%s: %s has no description", where, p.Name)
		case seen[p.Name]:
			return fmt.Errorf("%s: %s is defined twice", where, p.Name)
		case ref != "" && types[full(d, ref)] == nil:
			return fmt.Errorf("%s: %s is of the unknown type %s", where, p.Name, ref)
		case full(d, p.Ref) == streamRef && p.Direction != "send" && p.Direction != "receive":
			return fmt.Errorf("%s: the stream %s has no direction", where, p.Name)
		case p.Encoding != "" && (p.Encoding != "base64" || p.Type != "string"):
			return fmt.Errorf("%s: %s has an unknown encoding", where, p.Name)
		case p.Type == "object" && (p.Optional || p.Ref != ""):
			return fmt.Errorf("%s: the object %s is optional or has a type", where, p.Name)
		case p.Distinct && !p.Optional:
			return fmt.Errorf("%s: %s is distinct and not optional", where, p.Name)
		}
		seen[p.Name] = true
	}
	return nil
}

// types returns all types by their full names.
func (p *protocol) types() map[string]*typ {
	m := make(map[string]*typ)
	for _, d := range p.Domains {
		for _, t := range d.Types {
			m[d.Domain+"."+t.ID] = t
		}
	}
	return m
}

// full returns a reference's full name.
func full(d *domain, ref string) string {
	if ref == "" || strings.Contains(ref, ".") {
		return ref
	}
	return d.Domain + "." + ref
}
