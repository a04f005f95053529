package cli

import (
	"reflect"
	"strings"
	"testing"

	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/sandboxes"
)

// TestEnvironmentOfHolder checks that a holder reads from its environment the options of the
// executor that starts it. The state directory and the holder itself are arguments.
func TestEnvironmentOfHolder(t *testing.T) {
	var o executor.Options
	v := reflect.ValueOf(&o).Elem()
	for i := range v.NumField() {
		if f := v.Field(i); f.Kind() == reflect.String {
			f.SetString("value of " + v.Type().Field(i).Name)
		}
	}
	env := map[string]string{}
	for _, kv := range o.Environ() {
		name, value, _ := strings.Cut(kv, "=")
		env[name] = value
	}
	got := environment(func(name string) string { return env[name] })
	// Its starter, whose callers get the errors, knows what contains the state directory.
	got.Dir, got.Within, got.Holder = o.Dir, o.Within, sandboxes.Holder{}
	if got.VaultToken != "" {
		t.Error("a holder gets the token of Vault, which it does not need")
	}
	o.VaultToken = ""
	if !reflect.DeepEqual(got.Options, o) {
		t.Errorf("the holder has %+v, and its caller %+v", got.Options, o)
	}
}

// TestEnvironmentOfEmbedder checks that a holder reads no setting of the environment of the program
// that starts it, whatever the options of its executor. The state directory is an argument.
func TestEnvironmentOfEmbedder(t *testing.T) {
	env := map[string]string{}
	for _, v := range Variables {
		env[v.Name] = "/nonexistent"
	}
	for _, kv := range (executor.Options{QEMU: "/srv/qemu"}).Environ() {
		name, value, _ := strings.Cut(kv, "=")
		env[name] = value
	}
	got := environment(func(name string) string { return env[name] })
	got.Dir, got.Background = "", ""
	want := Settings{Options: executor.Options{QEMU: "/srv/qemu"}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the holder has %+v, want %+v", got, want)
	}
}

// TestEnvironmentFirst checks that of two variables with one destination the first with a value
// wins.
func TestEnvironmentFirst(t *testing.T) {
	env := map[string]string{"npm_config_registry": "a", "NPM_CONFIG_REGISTRY": "b"}
	get := func(name string) string { return env[name] }
	if s := environment(get); s.NpmRegistry != "a" {
		t.Error(s.NpmRegistry)
	}
	delete(env, "npm_config_registry")
	if s := environment(get); s.NpmRegistry != "b" {
		t.Error(s.NpmRegistry)
	}
}
