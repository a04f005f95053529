package turns_test

import (
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"turnstone.dev/turnstone/internal/kube/kubetest"
)

type world struct {
	*testing.T
	cluster *kubetest.Cluster
	admin   client.Client
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func TestSchema(t *testing.T) {
	w := &world{T: t, cluster: kubetest.Run(t, "../../..")}
	cfg, err := w.cluster.Config(kubetest.Admin)
	w.must(err)
	w.admin, err = client.New(cfg, client.Options{})
	w.must(err)
	w.schema(t)
}
