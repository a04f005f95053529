package kubetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ownNamespaces are those that the API server makes itself.
var ownNamespaces = []string{"default", "kube-node-lease", "kube-public", "kube-system"}

// Clear removes all objects of kinds, whatever their finalizers, and all namespaces that the API server
// has not made, and waits until they are gone. Nothing else may write such objects meanwhile.
func Clear(ctx context.Context, admin client.Client, kinds ...schema.GroupVersionKind) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	for _, kind := range kinds {
		if err := clearKind(ctx, admin, kind); err != nil {
			return fmt.Errorf("removing each %s: %w", kind.Kind, err)
		}
	}
	return clearNamespaces(ctx, admin)
}

// clearKind lists and deletes until the list is empty.
func clearKind(ctx context.Context, admin client.Client, kind schema.GroupVersionKind) error {
	for {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(kind)
		if err := admin.List(ctx, list); err != nil || len(list.Items) == 0 {
			return err
		}
		for i := range list.Items {
			if err := clearObject(ctx, admin, &list.Items[i]); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond): //wait: the loop polls
		}
	}
}

func clearObject(ctx context.Context, admin client.Client, o *unstructured.Unstructured) error {
	if len(o.GetFinalizers()) > 0 {
		none := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))
		if err := client.IgnoreNotFound(admin.Patch(ctx, o, none)); err != nil {
			return err
		}
	}
	return client.IgnoreNotFound(admin.Delete(ctx, o, client.GracePeriodSeconds(0)))
}

// clearNamespaces does what the controller of namespaces would: there is none.
func clearNamespaces(ctx context.Context, admin client.Client) error {
	list := &corev1.NamespaceList{}
	if err := admin.List(ctx, list); err != nil {
		return err
	}
	for i := range list.Items {
		n := &list.Items[i]
		if slices.Contains(ownNamespaces, n.Name) {
			continue
		}
		if err := admin.Delete(ctx, n); err != nil && !apierrors.IsConflict(err) {
			return err
		}
		if err := admin.Get(ctx, client.ObjectKeyFromObject(n), n); err != nil {
			return err
		}
		n.Spec.Finalizers = nil
		if err := admin.SubResource("finalize").Update(ctx, n); err != nil {
			return errors.Join(fmt.Errorf("namespace %s", n.Name), err)
		}
	}
	return nil
}
