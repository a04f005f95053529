package kubetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// AgentSandbox returns the folder of the module sigs.k8s.io/agent-sandbox.
func AgentSandbox(ctx context.Context) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/agent-sandbox")
	out, err := cmd.Output()
	dir := strings.TrimSpace(string(out))
	if err == nil && dir == "" {
		err = errors.New("the module sigs.k8s.io/agent-sandbox is not there: go mod download")
	}
	return dir, err
}

// OwnCRDs is the folder with the definitions of the project's own objects, in the checkout.
const OwnCRDs = "packaging/helm/turnstone/crds"

// Objects decodes the objects of a YAML text.
func Objects(text []byte) (all []*unstructured.Unstructured, err error) {
	for d := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096); ; {
		u := &unstructured.Unstructured{}
		if err := d.Decode(u); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		if len(u.Object) > 0 {
			all = append(all, u)
		}
	}
}

// operatorName is the name of the operator's rights in the manifests.
const operatorName = "turnstone-operator"

// GrantOperator gives a user the operator's rights in all namespaces, of the manifests of a file, and
// nothing more.
func (c *Cluster) GrantOperator(ctx context.Context, file, user string) error {
	admin, err := c.grant(ctx, file, "ClusterRole", "")
	if err != nil {
		return err
	}
	return admin.Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: operatorName},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: operatorName},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}}})
}

// GrantOwn gives a user the operator's rights in its own namespace.
func (c *Cluster) GrantOwn(ctx context.Context, file, user, namespace string) error {
	admin, err := c.grant(ctx, file, "Role", namespace)
	if err != nil {
		return err
	}
	return admin.Create(ctx, &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: operatorName, Namespace: namespace},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: operatorName},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}}})
}

// grant creates the operator's rights of a kind, and returns a client that may do everything.
func (c *Cluster) grant(ctx context.Context, file, kind, namespace string) (client.Client, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	all, err := Objects(text)
	if err != nil {
		return nil, err
	}
	cfg, err := c.Config(Admin)
	if err != nil {
		return nil, err
	}
	admin, err := client.New(cfg, client.Options{})
	if err != nil {
		return nil, err
	}
	for _, o := range all {
		if o.GetKind() == kind && o.GetName() == operatorName {
			o.SetNamespace(namespace)
			if err := admin.Create(ctx, o); err != nil {
				return nil, err
			}
		}
	}
	return admin, nil
}

// InstallCRDs creates the definitions in the files of a folder, and waits until they are served.
func (c *Cluster) InstallCRDs(ctx context.Context, folder string) error {
	files, err := filepath.Glob(filepath.Join(folder, "*.yaml"))
	if err != nil {
		return err
	}
	slices.Sort(files)
	cfg, err := c.Config(Admin)
	if err != nil {
		return err
	}
	to, err := client.New(cfg, client.Options{})
	if err != nil {
		return err
	}
	var names []client.ObjectKey
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		all, err := Objects(text)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		for _, u := range all {
			if err := to.Create(ctx, u); err != nil && !apierrors.IsAlreadyExists(err) {
				return fmt.Errorf("%s: %w", file, err)
			}
			names = append(names, client.ObjectKey{Name: u.GetName()})
		}
	}
	for _, n := range names {
		if err := established(ctx, to, n); err != nil {
			return err
		}
	}
	return nil
}

// established waits until a definition is served: that the API server has established it, and that clients which ask
// for its kinds are told of it, which comes a moment later.
func established(ctx context.Context, from client.Client, n client.ObjectKey) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	for {
		u := &unstructured.Unstructured{}
		u.SetAPIVersion("apiextensions.k8s.io/v1")
		u.SetKind("CustomResourceDefinition")
		if err := from.Get(ctx, n, u); err != nil {
			return err
		}
		list, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
		for _, one := range list {
			if m, ok := one.(map[string]any); ok && m["type"] == "Established" && m["status"] == "True" && listed(from, u) {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not served: %w", n.Name, ctx.Err())
		case <-time.After(20 * time.Millisecond): //wait: the loop polls
		}
	}
}

// listed reports whether clients find the kind of a definition, in all of its versions.
func listed(from client.Client, u *unstructured.Unstructured) bool {
	group, _, _ := unstructured.NestedString(u.Object, "spec", "group")
	kind, _, _ := unstructured.NestedString(u.Object, "spec", "names", "kind")
	versions, _, _ := unstructured.NestedSlice(u.Object, "spec", "versions")
	for _, v := range versions {
		m, _ := v.(map[string]any)
		name, _ := m["name"].(string)
		if m["served"] != true {
			continue
		}
		if _, err := from.RESTMapper().RESTMapping(schema.GroupKind{Group: group, Kind: kind}, name); err != nil {
			return false
		}
	}
	return true
}
