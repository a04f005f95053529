package reviews

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/kube/kubetest"
	"turnstone.dev/turnstone/internal/kube/router"
)

const root = "../../.."

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// counted counts the questions.
type counted struct {
	client.Writer
	asked int
}

func (c *counted) Create(ctx context.Context, o client.Object, more ...client.CreateOption) error {
	c.asked++
	return c.Writer.Create(ctx, o, more...)
}

// TestReview asks a real API server about tokens of service accounts, with the rights of the chart's operator.
func TestReview(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts an API server")
	}
	c := kubetest.Run(t, root)
	ctx := t.Context()
	as := func(user string) client.Client {
		cfg, err := c.Config(user)
		must(t, err)
		to, err := client.New(cfg, client.Options{Scheme: clientgoscheme.Scheme})
		must(t, err)
		return to
	}
	admin := as(kubetest.Admin)
	create := func(o client.Object) {
		t.Helper()
		if err := admin.Create(ctx, o); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	rights := func(name, namespace string, subject rbacv1.Subject, rules ...rbacv1.PolicyRule) {
		create(&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}, Rules: rules})
		create(&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
			Subjects: []rbacv1.Subject{subject}})
	}
	rule := func(verb, group, resource string, names ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{Verbs: []string{verb}, APIGroups: []string{group}, Resources: []string{resource},
			ResourceNames: names}
	}
	get := rule("get", "agents.x-k8s.io", "sandboxes")
	users := map[string][]rbacv1.PolicyRule{
		"user":     {get, rule("create", "agents.x-k8s.io", "sandboxes")},
		"claimer":  {get, rule("create", "extensions.agents.x-k8s.io", "sandboxclaims")},
		"one":      {rule("get", "agents.x-k8s.io", "sandboxes", "box"), rule("create", "agents.x-k8s.io", "sandboxes")},
		"reader":   {get},
		"stranger": nil,
	}
	create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}})
	create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "other"}})
	token := func(name string, audiences ...string) string {
		t.Helper()
		r := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: audiences}}
		must(t, admin.SubResource("token").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: "team"}}, r))
		return r.Status.Token
	}
	tokens := map[string]string{}
	for name, rules := range users {
		create(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "team"}})
		rights(name, "team", rbacv1.Subject{Kind: "ServiceAccount", Name: name, Namespace: "team"}, rules...)
		tokens[name] = token(name)
	}
	const operator = "router-operator"
	must(t, c.GrantOperator(ctx, root+"/packaging/kubernetes/turnstone.yaml", operator))
	to := &counted{Writer: as(operator)}
	r := New(to)
	now := time.Now()
	r.now = func() time.Time { return now }
	const yes, unknown, no = "yes", "unknown", "no"
	verdict := func(r *Reviewer, token, namespace, name string) string {
		err := r.Review(ctx, token, namespace, name)
		switch {
		case err == nil:
			return yes
		case errors.Is(err, router.ErrUnknown):
			return unknown
		case turnstone.KindOf(err) == turnstone.KindDenied:
			return no
		}
		return fmt.Sprint(err)
	}
	check := func(who, namespace, name, want string) {
		t.Helper()
		if got := verdict(r, tokens[who], namespace, name); got != want {
			t.Errorf("%s, %s/%s: %s, not %s", who, namespace, name, got, want)
		}
	}
	tokens["nobody"], tokens["forged"] = "nonsense", tokens["user"][:len(tokens["user"])-8]+"AAAAAAAA"
	for who, want := range map[string]string{"user": yes, "claimer": yes, "one": yes, "reader": no, "stranger": no,
		"nobody": unknown, "forged": unknown} {
		check(who, "team", "box", want)
	}
	check("one", "team", "another", no)
	check("user", "other", "box", no)

	// An answer counts shortly: the second question costs nothing, and a right that is taken away ends.
	before := to.asked
	check("user", "team", "box", yes)
	check("nobody", "team", "box", unknown)
	if to.asked != before {
		t.Errorf("%d questions about what is known", to.asked-before)
	}
	must(t, admin.Delete(ctx, &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "user", Namespace: "team"}}))
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		now = now.Add(2 * keptFor)
		got := verdict(r, tokens["user"], "team", "box") // the API server hears of its own writes later
		if got == no {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("a right that was taken away is still there: %s", got)
		}
	}

	// With an audience, tokens for the API server are nobody's, and those for the router are.
	r = New(to, "sandboxes.example")
	check("claimer", "team", "box", unknown)
	tokens["claimer"] = token("claimer", "sandboxes.example")
	check("claimer", "team", "box", yes)
	if got := verdict(New(to), tokens["claimer"], "team", "box"); got != unknown {
		t.Errorf("a token for the router is one for the API server: %s", got)
	}
	if got := turnstone.KindOf(New(as("powerless")).Review(ctx, tokens["claimer"], "team", "box")); got != turnstone.KindUnavailable {
		t.Errorf("an operator that may not ask answers %v", got)
	}
}
