package main

import (
	"context"
	"log/slog"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/kube/machines"
)

// machineFlags say which machines a cluster autoscaler is asked for.
type machineFlags struct {
	Set      string            `name:"machines" help:"Ask the cluster autoscaler for machines, with pods beside this DaemonSet of nodes (NAMESPACE/NAME)." placeholder:"NAMESPACE/NAME"`
	Image    string            `name:"machines-image" help:"Image of those pods: that of the operator."`
	Min      int               `name:"machines-min" help:"Least number of machines." default:"1"`
	Max      int               `name:"machines-max" help:"Most machines." default:"10"`
	Spare    int               `name:"machines-spare" help:"Room to keep free, in percent of what is used." default:"25"`
	Idle     time.Duration     `name:"machines-idle" help:"How long a machine has nothing to do before it is given back." default:"10m"`
	Requests map[string]string `name:"machines-request" help:"What of a machine its sandboxes may use, which no other pod gets (memory=56Gi)." placeholder:"RESOURCE=SIZE"`
}

// add makes a manager ask for machines, if it is to.
func (f *machineFlags) add(m manager.Manager, of machines.Server, log *slog.Logger) error {
	if f.Set == "" {
		return nil
	}
	fail := func(subject, text string) error {
		return turnstone.Errorf("operator.machines", turnstone.KindInvalid, subject, "%s", text)
	}
	namespace, name, ok := strings.Cut(f.Set, "/")
	switch {
	case !ok || namespace == "" || name == "" || strings.Contains(name, "/"):
		return fail("--machines "+f.Set, "is not NAMESPACE/NAME")
	case f.Image == "":
		return fail("--machines", "needs --machines-image")
	case f.Min < 1 || f.Max < f.Min:
		// without a node nothing waits for room: requests end at once
		return fail("--machines-min", "is less than 1, or more than --machines-max")
	case f.Spare < 0 || f.Spare > 1000:
		return fail("--machines-spare", "is not 0 to 1000")
	case f.Idle < 0:
		return fail("--machines-idle", "is less than 0")
	}
	requests := corev1.ResourceList{}
	for what, size := range f.Requests {
		q, err := resource.ParseQuantity(size)
		if err != nil || q.Sign() < 0 {
			return fail("--machines-request "+what+"="+size, "is not RESOURCE=SIZE")
		}
		requests[corev1.ResourceName(what)] = q
	}
	return m.Add(machines.New(machines.Options{Server: of, Client: m.GetClient(), Reader: m.GetAPIReader(),
		Namespace: namespace, Set: name, Image: f.Image, Command: []string{"/usr/bin/turn-operator", holds},
		Requests: requests, Log: log,
		Rules: machines.Rules{Min: f.Min, Max: f.Max, Spare: f.Spare, Idle: f.Idle}}))
}

// holds is the argument with which this program does nothing until it is told to end, in the pods that
// stand for machines.
const holds = "hold"

func hold(ctx context.Context) { <-ctx.Done() }
