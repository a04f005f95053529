package main

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/kube/kubetest"
)

// TestInSecret: with the chart's rights the operator replaces the token in its own secret, keeps the other
// keys, reads no secret, and changes no other one.
func TestInSecret(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts an API server")
	}
	c, ctx := kubetest.Run(t, "../.."), t.Context()
	clientOf := func(user string) client.Client {
		cfg, err := c.Config(user)
		must(t, err)
		to, err := client.New(cfg, client.Options{})
		must(t, err)
		return to
	}
	admin, operator := clientOf(kubetest.Admin), clientOf("turn-operator")
	must(t, admin.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "turnstone"}}))
	secret := func(name string) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "turnstone", Name: name},
			Data: map[string][]byte{"key": []byte("k"), "token": []byte("old")}}
	}
	must(t, admin.Create(ctx, secret("turnstone-operator")))
	must(t, admin.Create(ctx, secret("other")))
	must(t, c.GrantOwn(ctx, "../../packaging/kubernetes/turnstone.yaml", "turn-operator", "turnstone"))
	var err error
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(50 * time.Millisecond) { // the server hears of its rights later
		err = inSecret(operator, "turnstone", "turnstone-operator")(ctx, "new")
		if err == nil || time.Now().After(end) {
			break
		}
	}
	must(t, err)
	if err := inSecret(operator, "turnstone", "other")(ctx, "new"); turnstone.KindOf(err) != turnstone.KindUnavailable ||
		turnstone.HintOf(err) == "" {
		t.Errorf("another secret: %v", err)
	}
	if err := operator.Get(ctx, client.ObjectKeyFromObject(secret("other")), &corev1.Secret{}); !apierrors.IsForbidden(err) {
		t.Errorf("a secret is read: %v", err)
	}
	for name, want := range map[string]string{"turnstone-operator": "new", "other": "old"} {
		s := &corev1.Secret{}
		must(t, admin.Get(ctx, client.ObjectKeyFromObject(secret(name)), s))
		if string(s.Data["token"]) != want || string(s.Data["key"]) != "k" {
			t.Errorf("%s has %q", name, s.Data)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
