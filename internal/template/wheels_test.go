package template

import (
	"context"
	"errors"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/template/registry"
)

const wheelSpec = `base = "debian:bookworm"
wheels = [
  { file = "uv-1.2-py3-none-manylinux2014_x86_64.whl", sha256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" },
]
`

func TestWheelsInASpec(t *testing.T) {
	parse := func(text string) *Spec {
		t.Helper()
		s, err := Parse("mine", []byte(text), nil)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := parse(wheelSpec)
	if len(s.Wheels) != 1 || s.layered() {
		t.Errorf("%+v, layered: %v", s, s.layered())
	}
	if got, want := s.Digest(), turnstone.Digest("sha256:f3b663389994f6093fe51ffdc7101f56866a1a4502fc8010af7ae5b03b535829"); got != want {
		t.Errorf("digest %s, want %s", got, want)
	}
	if again, err := s.reread(); err != nil || again.Digest() != s.Digest() {
		t.Errorf("%+v, %v", again, err)
	}
	for what, text := range map[string]string{
		"version": strings.Replace(wheelSpec, "uv-1.2", "uv-1.3", 1),
		"digest":  strings.Replace(wheelSpec, "e3b0", "e3b1", 1),
		"list":    `base = "debian:bookworm"`,
	} {
		if parse(text).Digest() == s.Digest() {
			t.Errorf("another %s makes the same template", what)
		}
	}
	// Below what needs a sandbox, the programs are in the root image.
	s = parse(wheelSpec + "commands = ['uv --version']\n")
	if low := s.below(); !s.layered() || low == nil || low.layered() || len(low.Wheels) != 1 {
		t.Errorf("%+v on %+v", s, s.below())
	}
}

func TestWheelsThatASpecMayNotHave(t *testing.T) {
	for text, want := range map[string]string{
		strings.Replace(wheelSpec, "debian:bookworm", "python", 1): "on other bases use pip",
		strings.Replace(wheelSpec, "debian:bookworm", "oci:x", 1):  "on other bases use pip",
		strings.Replace(wheelSpec, "e3b0", "", 1):                  "64 lower-case hex digits",
		strings.Replace(wheelSpec, "manylinux2014_x86_64", "any", 1): "is not a wheel for " +
			"manylinux on x86_64",
		strings.Replace(wheelSpec, "uv-1.2", "../uv-1.2", 1): "is not the name of a wheel",
		strings.Replace(wheelSpec, "sha256", "sha265", 1):    `the nearest known key: "sha256"`,
		"base = 'debian:bookworm'\nwheels = ['uv']":          "wheels: want",
	} {
		_, err := Parse("mine", []byte(text), nil)
		if turnstone.KindOf(err) != turnstone.KindInvalid || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), specFile+":") {
			t.Errorf("%s\n%v", text, err)
		}
	}
}

func TestAddPrograms(t *testing.T) {
	s, err := Parse("mine", []byte(wheelSpec+"[[files]]\npath = '/usr/local/bin/x'\ncontent = ''\n"),
		nil)
	if err != nil {
		t.Fatal(err)
	}
	name, failure := "uv", error(nil)
	fetch := func(_ context.Context, list []registry.Wheel) ([]registry.Program, error) {
		if len(list) != 1 || list[0] != s.Wheels[0] {
			t.Errorf("fetches %v", list)
		}
		return []registry.Program{{Name: name, Content: []byte("program")}}, failure
	}
	add := func() (*Spec, error) {
		building := *s
		building.programs = fetch
		err := building.addPrograms(t.Context(), func(string) {})
		return &building, err
	}
	got, err := add()
	if err != nil || len(got.Files) != 2 || len(s.Files) != 1 || got.Digest() == s.Digest() {
		t.Fatalf("%+v, %v", got, err)
	}
	if f := got.Files[1]; f.Path != "/usr/local/bin/uv" || f.Mode != 0o755 ||
		string(f.Content) != "program" {
		t.Errorf("%+v", f)
	}
	name = "x"
	if _, err := add(); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Errorf("a file of the spec: %v", err)
	}
	failure = errors.New("no index")
	if _, err := add(); !errors.Is(err, failure) {
		t.Errorf("%v", err)
	}
}

// TestVersionsOfWheels checks that a built template lists the versions of its wheels.
func TestVersionsOfWheels(t *testing.T) {
	s, _ := counting(t)
	if got := ensure(t, s, "python"); got.Pip["uv"] == "" || len(got.Layers) != 0 {
		t.Errorf("%v, %d layers", got.Pip, len(got.Layers))
	}
}
