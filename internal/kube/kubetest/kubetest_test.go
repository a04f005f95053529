package kubetest_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"turnstone.dev/turnstone/internal/kube/kubetest"
)

func TestCluster(t *testing.T) {
	c := kubetest.Run(t, "../../..")
	admin, err := c.Config(kubetest.Admin)
	if err != nil {
		t.Fatal(err)
	}
	to, err := client.New(admin, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "one"}}
	if err := to.Create(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	all, err := c.Writes()
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, w := range all {
		if w.User == kubetest.Admin && w.Resource == "configmaps" && w.Name == "one" && w.Verb == "create" {
			found++
		}
	}
	if found != 1 {
		t.Errorf("the audit log has the write %d times: %v", found, all)
	}
	nobody, err := c.Config("nobody")
	if err != nil {
		t.Fatal(err)
	}
	from, err := client.New(nobody, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := from.List(t.Context(), &corev1.ConfigMapList{}); err == nil {
		t.Error("a user without rights may list")
	}
	clears(t, to)
	c.EndAPIServer()
	if err := c.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := to.Get(t.Context(), client.ObjectKeyFromObject(m), m); err != nil {
		t.Error(err)
	}
}

// clears leaves objects with finalizers in two namespaces, and lets Clear remove them.
func clears(t *testing.T, to client.Client) {
	t.Helper()
	more := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "more"}}
	if err := to.Create(t.Context(), more); err != nil {
		t.Fatal(err)
	}
	for _, namespace := range []string{"default", "more"} {
		s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "left",
			Finalizers: []string{"example.org/hold"}}}
		if err := to.Create(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	if err := kubetest.Clear(t.Context(), to, corev1.SchemeGroupVersion.WithKind("Secret")); err != nil {
		t.Fatal(err)
	}
	left := &corev1.SecretList{}
	if err := to.List(t.Context(), left); err != nil || len(left.Items) > 0 {
		t.Errorf("%d objects are left: %v", len(left.Items), err)
	}
	if err := to.Get(t.Context(), client.ObjectKeyFromObject(more), more); !apierrors.IsNotFound(err) {
		t.Errorf("the namespace is left: %v", err)
	}
}
