package turns_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	os.Exit(m.Run())
}

// object returns an object of a kind with a name and a spec.
func object(t *testing.T, kind, name, spec string) *unstructured.Unstructured {
	t.Helper()
	text := fmt.Sprintf(`{"apiVersion":"turnstone.dev/v1alpha1","kind":%q,"metadata":{"name":%q,"namespace":"default"},"spec":%s}`,
		kind, name, spec)
	u := &unstructured.Unstructured{}
	if err := json.Unmarshal([]byte(text), &u.Object); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return u
}

// a is a text of n bytes.
func a(n int) string { return strings.Repeat("a", n) }

const sum = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// document is a spec of a Turn, with more.
func document(more string) string {
	return `{"document":{"session":"docs","path":"/a.md"}` + more + `}`
}

// hostile lists objects that the API server refuses, with what it says.
func hostile() []struct{ kind, name, spec, want string } {
	from := func(s string) string { return `{"document":` + s + `}` }
	return []struct{ kind, name, spec, want string }{
		{"Turn", "t", `{}`, "spec.document: Required value"},
		{"Turn", "t", `null`, "spec: Required value"},
		{"Turn", "t", `[]`, "must be of type object"},
		{"Turn", "t", from(`{}`), "document has one of session, inline and configMap"},
		{"Turn", "t", from(`{"session":"s","inline":"x"}`), "document has one of"},
		{"Turn", "t", from(`{"inline":"x","configMap":{"name":"a","key":"b"}}`), "document has one of"},
		{"Turn", "t", from(`{"inline":"x","path":"/a.md"}`), "document.turn and document.path are those of a session"},
		{"Turn", "t", from(`{"configMap":{"name":"a","key":"b"},"turn":"1"}`), "document.turn and document.path"},
		{"Turn", "t", from(`{"inline":""}`), "should be at least 1 chars"},
		{"Turn", "t", from(`{"inline":"` + a(65537) + `"}`), "may not be more than 65536"},
		{"Turn", "t", from(`{"configMap":{"name":"a"}}`), "configMap.key: Required value"},
		{"Turn", "t", from(`{"configMap":{"name":"../a","key":"b"}}`), "configMap.name"},
		{"Turn", "t", from(`{"configMap":{"name":"a","key":"b/c"}}`), "configMap.key"},
		{"Turn", "t", from(`"# text"`), "must be of type object"},
		{"Turn", "t", from(`{"session":"../x"}`), "should match '^[A-Za-z0-9]"},
		{"Turn", "t", from(`{"session":""}`), "should be at least 1 chars"},
		{"Turn", "t", from(`{"session":"` + a(65) + `"}`), "may not be more than 64"},
		{"Turn", "t", from(`{"session":"s","turn":"@1"}`), "document.turn"},
		{"Turn", "t", from(`{"session":"s","turn":"` + a(101) + `"}`), "may not be more than 100"},
		{"Turn", "t", from(`{"session":"s","path":"a.md"}`), "document.path"},
		{"Turn", "t", from(`{"session":"s","path":"/x/../etc/shadow"}`), "path has a part . or .."},
		{"Turn", "t", from(`{"session":"s","path":"/x\u0000y"}`), "document.path"},
		{"Turn", "t", from(`{"session":"s","path":"/` + a(4096) + `"}`), "may not be more than 4096"},
		{"Turn", "t", from(`{"session":"s","digest":"sha256:1"}`), "document.digest"},
		{"Turn", "t", from(`{"session":"s","digest":"` + sum + `0"}`), "may not be more than 71"},
		{"Turn", "t", document(`,"session":"../../other"`), "spec.session"},
		{"Turn", "t", document(`,"session":"` + a(65) + `"`), "may not be more than 64"},
		{"Turn", "t", document(`,"session":["a"]`), "must be of type string"},
		{"Turn", "t", document(`,"template":"a/b"`), "spec.template"},
		{"Turn", "t", document(`,"image":"/etc/passwd"`), "spec.image"},
		{"Turn", "t", document(`,"image":"-x"`), "spec.image"},
		{"Turn", "t", document(`,"image":"` + a(256) + `"`), "may not be more than 255"},
		{"Turn", "t", document(`,"image":"base","template":"t"`), "template and image exclude each other"},
		{"Turn", "t", document(`,"timeout":"1ms"`), "spec.timeout"},
		{"Turn", "t", document(`,"timeout":"0s"`), "timeout is not between 1s and 168h"},
		{"Turn", "t", document(`,"timeout":"999999h"`), "timeout is not between 1s and 168h"},
		{"Turn", "t", document(`,"timeout":-1`), "must be of type string"},
		{"Turn", "t", document(`,"machine":{}`), "should have at least 1 properties"},
		{"Turn", "t", document(`,"machine":{"cpus":65}`), "should be less than or equal to 64"},
		{"Turn", "t", document(`,"machine":{"cpus":-1}`), "should be greater than or equal to 1"},
		{"Turn", "t", document(`,"machine":{"memory":"1Ki"}`), "spec.machine.memory"},
		{"Turn", "t", document(`,"machine":{"memory":"255Mi"}`), "memory is not between 256Mi and 1Ti"},
		{"Turn", "t", document(`,"machine":{"disk":"17Ti"}`), "disk is not between 16Mi and 16Ti"},
		{"Turn", "t", document(`,"ttlSecondsAfterFinished":-1`), "should be greater than or equal to 0"},
		{"Turn", "t", document(`,"ttlSecondsAfterFinished":99999999999`), "ttlSecondsAfterFinished"},
		{"Turn", "Bad/Name", document(``), "metadata.name"},
		{"Session", a(65), `{}`, "the name is longer than 64 characters"},
		{"Session", "turn-6", `{}`, "the name reads as a turn's"},
		{"Session", "s", `{"deletionPolicy":"Shred"}`, `supported values: "Retain", "Delete"`},
		{"Session", "s", `{"parent":{}}`, "parent.session: Required value"},
		{"Session", "s", `{"parent":{"session":"a b"}}`, "parent.session"},
		{"Session", "s", `{"image":"base","template":"t"}`, "template and image exclude each other"},
		{"TurnTemplate", "t", `{}`, "spec.image: Required value"},
		{"TurnTemplate", "t", `{"image":"../x"}`, "spec.image"},
		{"TurnTemplate", "t", `{"image":"base","digest":"md5:1"}`, "spec.digest"},
	}
}

// schema tries objects that the API server refuses, changes that it refuses, and what it leaves out.
func (w *world) schema(t *testing.T) {
	ctx := t.Context()
	for _, one := range hostile() {
		err := w.admin.Create(ctx, object(t, one.kind, one.name, one.spec))
		if err == nil || !strings.Contains(err.Error(), one.want) {
			t.Errorf("%s %.200s: %v, without %q", one.kind, one.spec, err, one.want)
		}
	}
	// A list of more bytes than a request may have.
	many := object(t, "Turn", "many", document(`,"x":[`+strings.TrimSuffix(strings.Repeat(`"`+a(1000)+`",`, 4000), ",")+`]`))
	if err := w.admin.Create(ctx, many); !apierrors.IsRequestEntityTooLargeError(err) {
		t.Errorf("a huge list: %.200v", err)
	}
	w.immutable(ctx, t)
}

// immutable tries changes of objects.
func (w *world) immutable(ctx context.Context, t *testing.T) {
	// The Session is missing, so the Turn waits.
	turn := object(t, "Turn", "still", `{"document":{"session":"docs","path":"/a.md"},"session":"nowhere","unknown":1}`)
	turn.Object["status"] = map[string]any{"phase": "Passed", "turn": "t_forged"}
	w.must(w.admin.Create(ctx, turn))
	if _, has := turn.Object["status"]; has {
		t.Errorf("a status at the creation is kept: %v", turn.Object["status"])
	}
	if _, has, _ := unstructured.NestedFieldNoCopy(turn.Object, "spec", "unknown"); has {
		t.Error("an unknown field is kept")
	}
	session := object(t, "Session", "still", `{}`)
	w.must(w.admin.Create(ctx, session))
	template := object(t, "TurnTemplate", "still", `{"image":"base"}`)
	w.must(w.admin.Create(ctx, template))
	if policy, _, _ := unstructured.NestedString(session.Object, "spec", "deletionPolicy"); policy != "Retain" {
		t.Errorf("the default policy is %q", policy)
	}
	for _, one := range []struct {
		o           *unstructured.Unstructured
		patch, want string
	}{
		{turn, `{"spec":{"document":{"path":"/b.md"}}}`, "document cannot change: a Turn runs once"},
		{turn, `{"spec":{"document":{"digest":"` + sum + `"}}}`, "document cannot change"},
		{turn, `{"spec":{"session":"other"}}`, "session cannot change"},
		{turn, `{"spec":{"session":null}}`, "session cannot change"},
		{turn, `{"spec":{"image":"base"}}`, "image cannot change"},
		{turn, `{"spec":{"template":"x"}}`, "template cannot change"},
		{turn, `{"spec":{"timeout":"1m"}}`, "timeout cannot change"},
		{turn, `{"spec":{"machine":{"cpus":2}}}`, "machine cannot change"},
		{session, `{"spec":{"parent":{"session":"x"}}}`, "parent cannot change"},
		{template, `{"spec":{"image":"other"}}`, "spec cannot change"},
		{turn, `{"spec":{"ttlSecondsAfterFinished":60}}`, ""},
		{session, `{"spec":{"deletionPolicy":"Delete","image":"base"}}`, ""},
	} {
		err := w.admin.Patch(ctx, one.o.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(one.patch)))
		if (err == nil) != (one.want == "") || err != nil && !strings.Contains(err.Error(), one.want) {
			t.Errorf("%s: %v, not %q", one.patch, err, one.want)
		}
	}
	for _, o := range []client.Object{turn, session, template} {
		w.must(w.admin.Delete(ctx, o))
	}
}
