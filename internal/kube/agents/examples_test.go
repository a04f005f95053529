package agents_test

import (
	"bytes"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	sandboxv1 "sigs.k8s.io/agent-sandbox/api/v1beta1"
	extv1 "sigs.k8s.io/agent-sandbox/extensions/api/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"turnstone.dev/turnstone/internal/kube/kubetest"
)

var update = flag.Bool("update", false, "write the table of agent-sandbox's examples")

// examplesPage has the table of what becomes of agent-sandbox's examples.
const examplesPage = "../../../docs/kubernetes-examples.md"

// tableHead begins the table.
const tableHead = "| example | object | becomes |\n|---|---|---|\n"

// TestExamples applies the objects of agent-sandbox's own examples as they are, and compares what
// becomes of them with the table in the documentation. Templates and pools that no claim of the example uses get one.
func TestExamples(t *testing.T) {
	module, err := kubetest.AgentSandbox(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	w.operator(w.server, nil, classes...)
	var table strings.Builder
	table.WriteString(tableHead)
	all := examples(t, filepath.Join(module, "examples"))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		w.example(name, all[name], &table)
	}
	page, err := os.ReadFile(examplesPage)
	if err != nil {
		t.Fatal(err)
	}
	text, _, ok := strings.Cut(string(page), tableHead)
	if !ok {
		t.Fatalf("%s has no table", examplesPage)
	}
	if *update {
		if err := os.WriteFile(examplesPage, []byte(text+table.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if want := text + table.String(); want != string(page) {
		t.Errorf("%s is out of date: run go test ./internal/kube/agents -run TestExamples -update\n%s",
			examplesPage, table.String())
	}
}

// variable is a value that an example's reader sets, by envsubst as its text says.
var variable = regexp.MustCompile(`\$\{?[A-Z][A-Z_]+\}?`)

// classes are the runtime classes in the examples.
var classes = []string{"gvisor", "kata-fc", "kata-qemu", "kata-vm-isolation"}

// value is the one that this test sets.
func value(name []byte) []byte {
	if bytes.Contains(name, []byte("IMAGE")) {
		return []byte("registry.example/image")
	}
	return []byte("value")
}

// examples returns agent-sandbox's objects in the files of each folder of examples.
func examples(t *testing.T, dir string) map[string][]*unstructured.Unstructured {
	all := map[string][]*unstructured.Unstructured{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && (d.Name() == "overlays" || strings.HasPrefix(d.Name(), ".")) {
			return cmpErr(err, fs.SkipDir) // patches of other files, and another project's tests
		}
		if ext := filepath.Ext(path); ext != ".yaml" && ext != ".yml" {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(text), "agents.x-k8s.io/v1beta1") {
			return err
		}
		objects, err := kubetest.Objects(variable.ReplaceAllFunc(text, value))
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		name, _, _ := strings.Cut(rel, string(filepath.Separator))
		for _, o := range objects {
			if g := o.GroupVersionKind().Group; g == sandboxv1.GroupVersion.Group || g == extv1.GroupVersion.Group {
				all[name] = append(all[name], o)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func cmpErr(err, other error) error {
	if err != nil {
		return err
	}
	return other
}

// order is that in which kinds are created, for outcomes that do not depend on the files' names.
var order = []string{"SandboxTemplate", "SandboxWarmPool", "SandboxClaim", "Sandbox"}

// example applies an example, writes what became of it, and deletes it.
func (w *world) example(name string, all []*unstructured.Unstructured, table *strings.Builder) {
	w.Helper()
	slices.SortStableFunc(all, func(a, b *unstructured.Unstructured) int {
		return slices.Index(order, a.GetKind()) - slices.Index(order, b.GetKind())
	})
	of, claimed := map[string]string{}, map[string]bool{}
	for _, o := range all {
		if o.GetNamespace() == "" {
			o.SetNamespace("default")
		}
		w.namespace(o.GetNamespace())
		spec, _, _ := unstructured.NestedMap(o.Object, "spec")
		switch o.GetKind() {
		case "SandboxWarmPool":
			of[o.GetName()] = text(spec, "sandboxTemplateRef", "name")
		case "SandboxClaim":
			claimed[text(spec, "warmPoolRef", "name")] = true
		}
	}
	more := w.unclaimed(all, of, claimed)
	defer w.named(all)()
	for _, o := range append(all, more...) {
		row := func(becomes string) {
			kind, object, _ := strings.Cut(o.GetKind()+" `"+o.GetName()+"`", " ")
			fmt.Fprintf(table, "| %s | %s %s | %s |\n", name, kind, object, becomes)
		}
		if err := w.admin.Create(w.Context(), o); apierrors.IsAlreadyExists(err) {
			continue // another way to do the same
		} else if err != nil {
			row("refused by its definition: " + oneLine(err.Error()))
			continue
		}
		if o.GetKind() != "Sandbox" && o.GetKind() != "SandboxClaim" {
			continue
		}
		c := w.outcome(o)
		if c.Status == metav1.ConditionTrue {
			row("a sandbox")
			continue
		}
		row("`" + c.Reason + "`: " + oneLine(c.Message))
	}
	for _, o := range slices.Backward(append(all, more...)) {
		w.must(client.IgnoreNotFound(w.admin.Delete(w.Context(), o)))
	}
	for _, o := range append(all, more...) {
		w.until("the example "+name+" is gone", func() bool {
			err := w.admin.Get(w.Context(), client.ObjectKeyFromObject(o), o.DeepCopy())
			return apierrors.IsNotFound(err)
		})
	}
	w.until("the sandboxes of "+name+" are gone", func() bool { return len(w.server.all()) == 0 })
}

// named makes the ConfigMaps and Secrets that an example's containers name, as its reader does, and lets the
// operator read them.
func (w *world) named(all []*unstructured.Unstructured) (remove func()) {
	w.Helper()
	keys := map[string]map[string]bool{} // by namespace, kind and name
	for _, o := range all {
		named(o.Object, func(kind, name, key string) {
			id := o.GetNamespace() + " " + kind + " " + name
			if keys[id] == nil {
				keys[id] = map[string]bool{}
			}
			keys[id][key] = true
		})
	}
	var made []client.Object
	for id, has := range keys {
		part := strings.Split(id, " ")
		meta := metav1.ObjectMeta{Namespace: part[0], Name: part[2]}
		secret := &corev1.Secret{ObjectMeta: meta, StringData: map[string]string{}}
		config := &corev1.ConfigMap{ObjectMeta: meta, Data: secret.StringData}
		for key := range has {
			secret.StringData[key] = "value"
		}
		var o client.Object = config
		if part[1] == "secret" {
			o = secret
		}
		w.must(w.admin.Create(w.Context(), o))
		made = append(made, o)
		if !w.readable[meta.Namespace] {
			w.references(meta.Namespace)
			w.readable[meta.Namespace] = true
		}
	}
	return func() {
		for _, o := range made {
			w.must(w.admin.Delete(w.Context(), o))
		}
	}
}

// named calls f with each key of a ConfigMap or Secret that a part of an object names.
func named(part any, f func(kind, name, key string)) {
	if list, ok := part.([]any); ok {
		for _, v := range list {
			named(v, f)
		}
		return
	}
	m, _ := part.(map[string]any)
	for k, v := range m {
		kind := "configMap"
		if strings.HasPrefix(k, "secret") {
			kind = "secret"
		}
		of, _ := v.(map[string]any)
		name := text(of, "name") + text(of, "secretName")
		switch k {
		case "secretKeyRef", "configMapKeyRef":
			f(kind, name, text(of, "key"))
		case "secretRef", "configMapRef", "secret", "configMap":
			items, _ := of["items"].([]any)
			for _, i := range items {
				item, _ := i.(map[string]any)
				f(kind, name, text(item, "key"))
			}
			if len(items) == 0 && name != "" {
				f(kind, name, "VALUE")
			}
		default:
			named(v, f)
		}
	}
}

// unclaimed returns claims of the pools that no claim of an example uses, and pools of its templates
// without one.
func (w *world) unclaimed(all []*unstructured.Unstructured, of map[string]string,
	claimed map[string]bool) (more []*unstructured.Unstructured) {
	used := map[string]bool{}
	for _, t := range of {
		used[t] = true
	}
	add := func(o client.Object, kind, namespace, name string) {
		o.SetName(name)
		o.SetNamespace(namespace)
		m, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		w.must(err)
		u := &unstructured.Unstructured{Object: m}
		u.SetAPIVersion(extv1.GroupVersion.String())
		u.SetKind(kind)
		more = append(more, u)
	}
	for _, o := range all {
		pool := ""
		switch o.GetKind() {
		case "SandboxTemplate":
			if used[o.GetName()] {
				continue
			}
			pool = o.GetName()
			of[pool] = o.GetName()
			add(&extv1.SandboxWarmPool{Spec: extv1.SandboxWarmPoolSpec{
				TemplateRef: extv1.SandboxTemplateRef{Name: o.GetName()}}}, "SandboxWarmPool", o.GetNamespace(), pool)
		case "SandboxWarmPool":
			pool = o.GetName()
		}
		if pool != "" && !claimed[pool] {
			add(&extv1.SandboxClaim{Spec: extv1.SandboxClaimSpec{
				WarmPoolRef: extv1.SandboxWarmPoolRef{Name: pool}}}, "SandboxClaim", o.GetNamespace(), "any-of-"+pool)
		}
	}
	return more
}

func (w *world) namespace(name string) {
	w.Helper()
	err := w.admin.Create(w.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		w.Fatal(err)
	}
}

// outcome waits for the condition Ready that an object ends in.
func (w *world) outcome(o *unstructured.Unstructured) metav1.Condition {
	w.Helper()
	var typed client.Object = &sandboxv1.Sandbox{}
	if o.GetKind() == "SandboxClaim" {
		typed = &extv1.SandboxClaim{}
	}
	typed.SetName(o.GetName())
	typed.SetNamespace(o.GetNamespace())
	var c metav1.Condition
	if !kubetest.Poll(patience, func() bool {
		c = w.condition(typed, "Ready")
		// A pool or template is not found when the operator has not seen what was just created.
		return !slices.Contains([]string{"", "SandboxNotReady", "WarmPoolNotFound", "TemplateNotFound"}, c.Reason)
	}) {
		w.Fatalf("%s %s does not come to an end: %+v", o.GetKind(), o.GetName(), c)
	}
	return c
}

func text(m map[string]any, path ...string) string {
	s, _, _ := unstructured.NestedString(m, path...)
	return s
}

func oneLine(s string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(s), " "), "|", "\\|")
}
