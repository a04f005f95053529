package main

import (
	"strings"
	"testing"
)

// TestGenerated fails if a generated file differs from the generator's output for protocol.json.
func TestGenerated(t *testing.T) {
	if err := run("../..", true); err != nil {
		t.Error(err)
	}
}

// TestDescriptorErrors: a description with a missing or unknown key is rejected.
func TestDescriptorErrors(t *testing.T) {
	for name, tt := range map[string]struct{ text, want string }{
		"unknown word": {`{"domains":[{"domain":"A","description":"a","colour":1}]}`, "colour"},
		"no description": {`{"domains":[{"domain":"A","description":"a",
			"commands":[{"name":"b"}]}]}`, "A.b: no description"},
		"unknown type": {`{"domains":[{"domain":"A","description":"a",
			"commands":[{"name":"b","description":"b",
			"parameters":[{"name":"c","description":"c","$ref":"Nope"}]}]}]}`, "unknown type Nope"},
		"twice": {`{"domains":[{"domain":"A","description":"a",
			"commands":[{"name":"b","description":"b",
			"parameters":[{"name":"c","description":"c","type":"string"},
				{"name":"c","description":"c","type":"string"}]}]}]}`, "twice"},
		"stream without direction": {`{"domains":[{"domain":"IO","description":"i",
			"types":[{"id":"StreamId","description":"s","type":"integer"}],
			"commands":[{"name":"b","description":"b",
			"parameters":[{"name":"c","description":"c","$ref":"StreamId"}]}]}]}`, "direction"},
	} {
		if _, err := parse([]byte(tt.text)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want one with %q", name, err, tt.want)
		}
	}
}

func TestGoName(t *testing.T) {
	for in, want := range map[string]string{
		"processId": "ProcessID", "pid": "PID", "oomKilled": "OOMKilled", "TargetID": "TargetID",
		"bootId": "BootID",
		"url":    "URL", "cwd": "Cwd", "machineId": "MachineID", "targetInfos": "TargetInfos",
		"pidsMax":      "PIDsMax",
		"stdoutStream": "StdoutStream", "SIGKILL": "SIGKILL", "getTargets": "GetTargets",
		"dns": "DNS", "cpus": "CPUs",
	} {
		if got := goName(in); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}

// TestHostCommands: the commands of the host are marked in the reference, and in the code.
func TestHostCommands(t *testing.T) {
	p, err := parse([]byte(`{"version":{"major":"1","minor":"0"},
		"domains":[{"domain":"A","description":"a","commands":[
		{"name":"b","description":"b","host":true},{"name":"c","description":"c"}]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	code, err := goSource(p)
	if err != nil {
		t.Fatal(err)
	}
	_, host, _ := strings.Cut(string(code), "func HostOnly(")
	host, _, _ = strings.Cut(host, "\n}")
	if !strings.Contains(host, "case MethodAB:") || strings.Contains(host, "MethodAC") {
		t.Errorf("the commands of the host are\n%s", host)
	}
	doc := string(reference(p, "# Intro\n"))
	if !strings.Contains(doc, "*command of the host.* b") || !strings.Contains(doc, "*command.* c") {
		t.Errorf("the commands of the host are not marked in\n%s", doc)
	}
}

// TestReferenceLinks: every link of the reference has its anchor.
func TestReferenceLinks(t *testing.T) {
	p, err := parse([]byte(`{"version":{"major":"1","minor":"0"},
		"domains":[{"domain":"A","description":"a",
		"types":[{"id":"T","description":"t","type":"string"}],
		"commands":[{"name":"b","description":"b",
		"parameters":[{"name":"c","description":"x|y","$ref":"T","optional":true}]}]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	doc := string(reference(p, "# Intro\n"))
	for _, want := range []string{`<a id="A-T"></a>`, "[T](#A-T)", "*Optional.* x\\|y",
		"Used by [A.b](#A-b)", `<a id="A-b"></a>`} {
		if !strings.Contains(doc, want) {
			t.Errorf("no %q in\n%s", want, doc)
		}
	}
}
