package host

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/sandboxes"
)

// opHolder is the operation of finding a holder.
const opHolder turnstone.Op = "executor.holder"

// Holder returns the command that keeps sandboxes which outlive this process: the command of the
// options, or else the installed turn. The error is of kind Unavailable.
func (h *Host) Holder(ctx context.Context) (sandboxes.Holder, error) {
	holder := h.options.Holder
	if holder.Path == "" {
		path, err := FindTurn(ctx)
		if err != nil {
			return holder, turnstone.NewError(opHolder, turnstone.KindUnavailable, "turn", err).
				WithHint("install turn " + turnstone.Version +
					", or set Options.Holder: a process of its own keeps the sandbox")
		}
		holder = sandboxes.Holder{Path: path, Args: []string{"turn", "sandbox", "hold"},
			Env: holder.Env}
	}
	holder.Env = slices.Concat(h.options.Environ(), holder.Env)
	return holder, nil
}

// FindTurn returns the path of the program turn: beside the running program, or in PATH. The
// program must have the version of this module, because the messages between the two may change.
func FindTurn(ctx context.Context) (string, error) {
	path, err := exec.LookPath("turn")
	if self, selfErr := os.Executable(); selfErr == nil {
		beside, besideErr := exec.LookPath(filepath.Join(filepath.Dir(self), "turn"))
		if besideErr == nil && beside != self {
			path, err = beside, nil
		}
	}
	if err != nil {
		return "", err
	}
	out, err := exec.CommandContext(ctx, path, "version", "--json").Output()
	if err != nil {
		return "", fmt.Errorf("%s version: %w", path, err)
	}
	var is struct {
		Version string `json:"version"`
	}
	if err := json.Unmarshal(out, &is); err != nil {
		return "", fmt.Errorf("%s version: %w", path, err)
	}
	if is.Version != turnstone.Version {
		return "", fmt.Errorf("%s is version %q, and version %s is required", path, is.Version,
			turnstone.Version)
	}
	return path, nil
}

// Environ returns o as the variables that the command turn reads, for a holder. An option that is
// not set is an empty variable, which counts as unset, so that the holder reads no setting of this
// process's environment. The state directory is not included because it is an argument of the
// holder.
func (o Options) Environ() []string {
	return []string{
		"TURN_STORE=" + o.Store, "TURN_DATABASE=" + o.Database,
		"TURN_RUNSC=" + o.Runsc, "TURN_QEMU=" + o.QEMU,
		"TURN_FIRECRACKER=" + o.Firecracker, "TURN_JAILER=" + o.Jailer,
		"TURN_AGENT=" + o.AgentFile,
		"TURN_KERNEL=" + o.Kernel, "TURN_KERNEL_MODULES=" + o.KernelModules,
		"TURN_DEBIAN_MIRROR=" + o.DebianMirror,
		"TURN_DEBIAN_SECURITY_MIRROR=" + o.DebianSecurityMirror,
		"PIP_INDEX_URL=" + o.PipIndex,
		"npm_config_registry=" + o.NpmRegistry, "NPM_CONFIG_REGISTRY=",
		"TURN_SUBSTRATE=", "TURN_SESSION=", "TURN_PASSPHRASE_FILE=", "TURN_HOST=", "TURN_TOKEN=",
		"VAULT_TOKEN=",
	}
}
