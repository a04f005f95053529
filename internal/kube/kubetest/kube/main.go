// Kube runs a command with an API server of Kubernetes of its own: kube COMMAND [ARG...]. The command
// gets KUBECONFIG, of a user who may do everything, and the definitions of agent-sandbox are there.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"

	"turnstone.dev/turnstone/internal/kube/kubetest"
	"turnstone.dev/turnstone/internal/testhome"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	err := run(ctx, os.Args[1:])
	stop()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() > 0 {
		os.Exit(exit.ExitCode())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "kube:", err)
		os.Exit(1)
	}
}

// run builds the programs if they are missing, and runs the command.
func run(ctx context.Context, args []string) error {
	home, err := testhome.Path()
	if err != nil {
		return err
	}
	p, err := kubetest.Build(ctx, home, "internal/kube/kubetest/testserver")
	if err != nil {
		return err
	}
	if len(args) == 0 {
		fmt.Printf("%s\n%s\n", p.Etcd, p.APIServer)
		return nil
	}
	dir, err := os.MkdirTemp("", "kube")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	c, err := kubetest.Start(ctx, p, dir)
	if err != nil {
		return err
	}
	defer c.End()
	module, err := kubetest.AgentSandbox(ctx)
	if err != nil {
		return err
	}
	for _, folder := range []string{filepath.Join(module, "k8s/crds"), kubetest.OwnCRDs} {
		if err := c.InstallCRDs(ctx, folder); err != nil {
			return err
		}
	}
	config, err := c.Kubeconfig(kubetest.Admin)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+config, "TURN_TEST_AGENT_SANDBOX="+module)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	return cmd.Run()
}
