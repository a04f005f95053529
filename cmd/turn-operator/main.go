// Command turn-operator serves agent-sandbox's objects of a Kubernetes cluster with the sandboxes of a
// Turnstone server, and Turns with its turns: see docs/kubernetes.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/kube/agents"
	"turnstone.dev/turnstone/internal/kube/control"
	"turnstone.dev/turnstone/internal/kube/router"
	"turnstone.dev/turnstone/internal/kube/steady"
	"turnstone.dev/turnstone/internal/kube/turns"
	"turnstone.dev/turnstone/internal/kube/v1alpha1"
	"turnstone.dev/turnstone/internal/server/config"
)

// flags are the command line.
type flags struct {
	Host      string        `help:"The server: a name of hosts.toml, or an address there." required:""`
	Home      string        `help:"Folder with hosts.toml and the operator's key." env:"TURN_HOME" type:"path"`
	TokenFile string        `help:"File with the operator's token." type:"path" xor:"token" required:""`
	Secrets   string        `help:"Folder with hosts.toml, key and token, such as a mounted secret: they are copied into --home." type:"path" xor:"token" required:""`
	Away      time.Duration `name:"replace-after" help:"How long a sandbox's node may be lost before another sandbox is made. A pod's toleration of node.kubernetes.io/unreachable counts before it." default:"5m"`
	Turns     bool          `help:"Serve Turns, Sessions and TurnTemplates, too. The token needs their scopes."`
	Default   bool          `help:"Serve objects without a runtime class, too."`
	Follow    bool          `help:"Report sandboxes that were claimed at the server by objects; needs --default."`
	Class     []string      `help:"Serve objects of this runtime class, too, such as gvisor." placeholder:"NAME"`
	Image     []string      `help:"Replace the beginning of images' names (FROM=TO)." placeholder:"FROM=TO" sep:"none"`
	Router    string        `help:"HOST:PORT of the router for agent-sandbox's clients; off for none." default:"off"`
	Network   bool          `name:"router-network" help:"The router may be at an address that other machines reach, though it authenticates nobody."`
	Review    bool          `name:"router-review" help:"The router asks the API server who a caller is, by its token, and whether it may use the sandbox. Then other machines may reach it."`
	Audience  []string      `name:"router-audience" help:"Audience of the tokens of --router-review; none: the API server's own." placeholder:"NAME"`
	Cert      string        `name:"router-certificate" help:"Certificate of the router, with which it speaks HTTPS; read again when it changes." type:"path" placeholder:"FILE"`
	CertKey   string        `name:"router-key" help:"Key of --router-certificate." type:"path" placeholder:"FILE"`
	Forwarded bool          `name:"router-forwarded" help:"Callers through a port-forward to this pod need no token: the API server has asked whether they may do that."`
	Renew     string        `help:"Renew the token, which needs the scope tokens:renew, when half of its life is over: in this Secret (NAMESPACE/NAME), or file for that of --token-file." placeholder:"SECRET"`
	Metrics   string        `help:"HOST:PORT of metrics; 0 for none." default:"127.0.0.1:8080"`
	Health    string        `help:"HOST:PORT of /healthz and /readyz; 0 for none." default:"127.0.0.1:8081"`
	Elect     string        `help:"Namespace of the Lease that elects a leader; none: without election."`
	LogLevel  string        `help:"Least important messages: debug, info, warn or error." default:"info"`

	Machines machineFlags `embed:""`
}

func main() {
	if slices.Equal(os.Args[1:], []string{holds}) {
		hold(ctrl.SetupSignalHandler())
		return
	}
	var f flags
	kong.Parse(&f, kong.Name("turn-operator"),
		kong.Description("Serve agent-sandbox's objects with the sandboxes of a Turnstone server."))
	if err := run(ctrl.SetupSignalHandler(), f); err != nil {
		fmt.Fprintln(os.Stderr, "turn-operator:", err)
		if hint := turnstone.HintOf(err); hint != "" {
			fmt.Fprintln(os.Stderr, "hint:", hint)
		}
		os.Exit(1)
	}
}

// run serves until ctx ends.
func run(ctx context.Context, f flags) error {
	var level slog.Level
	if err := level.UnmarshalText([]byte(f.LogLevel)); err != nil {
		return err
	}
	if f.Router != "off" && !f.Network && !f.Review && !config.Loopback(f.Router) {
		return turnstone.Errorf("operator.start", turnstone.KindInvalid, "--router "+f.Router,
			"is an address that other machines reach, and the router authenticates nobody").
			WithHint("use --router-review, a loopback address, or --router-network behind what authenticates callers")
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	ctrl.SetLogger(logr.FromSlogHandler(log.Handler()))
	cfg, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	if f.Secrets != "" {
		if f.Home == "" {
			return turnstone.Errorf("operator.start", turnstone.KindInvalid, "--secrets", "needs --home")
		}
		s := &secrets{from: f.Secrets, home: f.Home}
		if err := s.take(); err != nil {
			return err
		}
		if err := s.hosts(ctx, log); err != nil {
			return err
		}
		f.TokenFile = s.tokenFile()
		go s.follow(ctx, log)
	}
	to, err := control.New(ctx, control.Options{Host: f.Host, Dir: f.Home, TokenFile: f.TokenFile})
	if err != nil {
		return err
	}
	defer func() { _ = to.Close() }()
	o, err := options(f, to, log)
	if err != nil {
		return err
	}
	if o.Cluster, err = cluster(ctx, cfg); err != nil {
		return err
	}
	of, err := control.New(ctx, control.Options{Host: f.Host, Dir: f.Home, TokenFile: f.TokenFile,
		Scopes: control.Turns()})
	if err != nil {
		return err
	}
	defer func() { _ = of.Close() }()
	state := &readiness{check: to.Check, log: log}
	if err := state.serve(ctx, f.Health); err != nil {
		return err
	}
	go func() { _ = state.ready(ctx) }() // nobody may ask for /readyz
	if err := errors.Join(metrics.Registry.Register(tokenEnds(to.Ends)), metrics.Registry.Register(o.Metrics)); err != nil {
		return err
	}
	start := func(ctx context.Context) error {
		m, err := newManager(cfg, f)
		if err != nil {
			return err
		}
		if err := agents.Add(m, o); err != nil {
			return err
		}
		if f.Turns {
			if err := turns.Add(m, &turns.Options{Server: of, Log: log}); err != nil {
				return err
			}
		}
		if err := f.Machines.add(m, to, log); err != nil {
			return err
		}
		if r, err := f.newRenewer(m.GetClient(), to.Successor, log); err != nil {
			return err
		} else if r != nil {
			if err := m.Add(r); err != nil {
				return err
			}
		}
		if f.Router != "off" {
			r, err := f.routerOptions(cfg, m, to, o)
			if err != nil {
				return err
			}
			if err := m.Add(f.listener(router.New(r), log)); err != nil {
				return err
			}
		}
		return m.Start(ctx)
	}
	return steady.Keep(ctx, log, start)
}

// options returns what the flags say about objects.
func options(f flags, to *control.Client, log *slog.Logger) (*agents.Options, error) {
	o := &agents.Options{Server: to, Default: f.Default, Classes: f.Class, Log: log, Away: max(f.Away, time.Millisecond),
		Metrics: agents.NewMetrics()}
	if f.Follow && !f.Default { // another controller would serve the reports
		return nil, turnstone.Errorf("operator.start", turnstone.KindInvalid, "--follow", "needs --default")
	}
	if f.Follow {
		o.Follow = &agents.Follow{}
	}
	for _, text := range f.Image {
		from, by, ok := strings.Cut(text, "=")
		if !ok || from == "" {
			return nil, turnstone.Errorf("operator.start", turnstone.KindInvalid, "--image "+text, "is not FROM=TO")
		}
		o.Images = append(o.Images, agents.Image{From: from, To: by})
	}
	return o, nil
}

// newManager returns a manager without controllers.
func newManager(cfg *rest.Config, f flags) (manager.Manager, error) {
	scheme, err := agents.Scheme()
	if err == nil {
		err = v1alpha1.AddToScheme(scheme)
	}
	if err != nil {
		return nil, err
	}
	return ctrl.NewManager(cfg, ctrl.Options{Scheme: scheme, Metrics: server.Options{BindAddress: f.Metrics},
		HealthProbeBindAddress: "0", LeaderElection: f.Elect != "", LeaderElectionNamespace: f.Elect,
		LeaderElectionID: "turn-operator.turnstone.dev", LeaderElectionReleaseOnCancel: true})
}

// cluster returns what tells this cluster from others: it is as old as the cluster.
func cluster(ctx context.Context, cfg *rest.Config) (string, error) {
	c, err := client.New(cfg, client.Options{})
	if err != nil {
		return "", err
	}
	n := &corev1.Namespace{}
	err = c.Get(ctx, client.ObjectKey{Name: "kube-system"}, n)
	return string(n.UID), err
}
