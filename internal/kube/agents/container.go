package agents

import (
	"cmp"
	"context"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	sandboxv1 "sigs.k8s.io/agent-sandbox/api/v1beta1"

	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
)

// Main is the container of a sandbox: its process, and what has to be there before it.
type Main struct {
	// Argv is the program with its arguments; with Image the arguments in place of the image's CMD.
	Argv []string
	// Image starts what the image starts. Without it and Argv nothing is started.
	Image     bool
	Cwd, User string
	Dirs      []string
	Again     Restart
	// Inits have to succeed before it, one after another.
	Inits []Init
	// Startup, Readiness and Liveness are probes; nil: none.
	Startup, Readiness, Liveness *Probe
	// PostStart runs beside each process that was started, and PreStop before one is ended; nil: none.
	PostStart, PreStop *Hook
	// Grace is the time that PreStop and the signal TERM have before KILL.
	Grace time.Duration
	// Stop ends the container instead of starting it: PreStop, TERM, and KILL after Grace.
	Stop bool
	// Message is the file with what the container says at its end; Output: else the end of its output.
	Message string
	Output  bool
	// Was is what the object's status says of an earlier end: the sandbox may have forgotten the process.
	Was Was
	// Inputs returns what of the cluster the container needs. It is called before each start; nil: nothing.
	Inputs func(ctx context.Context) (Inputs, error) `json:"-"`
}

// Was is how a container has ended for good.
type Was struct{ Ended, Failed bool }

// An Init is a process of an init container.
type Init struct {
	Name      string
	Argv      []string // as Main has it
	Image     bool
	Cwd, User string
	Env       []string // KEY=VALUE, beside the container's own
	Secrets   []string // the names of those that came from the cluster
}

// Inputs are what a container gets of the cluster's ConfigMaps and Secrets. It goes through the channel of
// the sandbox, so that the server sees none of it.
type Inputs struct {
	Argv  []string // with the values of variables; nil: as Main has it
	Env   []string // of all processes of the sandbox, as secrets
	Files []File   // of all containers
	Inits []Init   // as Main has them, with all values; nil: as Main has them
}

// A File is a file of a volume.
type File struct {
	Path    string
	Mode    uint32
	Content []byte
}

// A Probe asks a container whether it has started, is ready, or lives. One of Exec, HTTP, TCP and GRPC is set.
type Probe struct {
	Exec []string
	HTTP *HTTPGet
	TCP  uint16
	GRPC *GRPC

	Delay, Period, Timeout time.Duration
	Success, Failure       int
}

// HTTPGet is a request of a probe.
type HTTPGet struct {
	Port          uint16
	TLS           bool
	Path          string
	Names, Values []string // of headers
}

// GRPC is a question to the standard health service at a port.
type GRPC struct {
	Port    uint16
	Service string
}

// A Hook is what runs at a container's start or end. One of Exec, HTTP and Sleep is set.
type Hook struct {
	Exec  []string
	HTTP  *HTTPGet
	Sleep time.Duration
}

// Restart says after which ends a process is started again.
type Restart string

// The values are those of a pod's restartPolicy.
const (
	Always    Restart = "Always"
	OnFailure Restart = "OnFailure"
	Never     Restart = "Never"
)

// A Process is what is known of the container of a sandbox. It is comparable.
type Process struct {
	// Ready says that it runs, and that its probes say that it is ready.
	Ready bool
	// Ended says that it has ended for good, and Failed how.
	Ended, Failed bool
	// Restarts is how often it was started again.
	Restarts int
	// Reason and Message say why it is not ready; Reason is empty for one that runs.
	Reason, Message string
	// Lost is how often the connection to the sandbox was lost: the sandbox may have ended.
	Lost int
}

// idle reports whether a container has nothing to do: only the end of its sandbox matters.
func (m *Main) idle() bool {
	return !m.process() && len(m.Dirs) == 0 && m.Inputs == nil && m.Inits == nil && m.Startup == nil &&
		m.Readiness == nil && m.Liveness == nil
}

// process reports whether a process is started.
func (m *Main) process() bool { return len(m.Argv) > 0 || m.Image }

// contained makes the container of a sandbox that runs what the object says, and the status what it is.
func (r *sandboxes) contained(ctx context.Context, s *sandboxv1.Sandbox, b *v1.Sandbox, m Main) error {
	if needsInputs(s) {
		of := s.DeepCopy()
		m.Inputs = func(ctx context.Context) (Inputs, error) { return inputs(ctx, r.live, of) }
	}
	if f := meta.FindStatusCondition(s.Status.Conditions, string(sandboxv1.SandboxConditionFinished)); f != nil {
		m.Was = Was{f.Status == metav1.ConditionTrue, f.Reason == sandboxv1.SandboxReasonPodFailed}
	}
	if m.idle() { // it is ready without an answer of the sandbox
		r.followers.watch(s, b.SandboxId, m)
		running(s, b, "", "")
		return nil
	}
	p, err := r.followers.state(ctx, s, b.SandboxId, m)
	if err != nil {
		return err
	}
	if p.Ended {
		r.finished(s, p.Failed, p.Message)
		return nil
	}
	why := ""
	if !p.Ready {
		why = cmp.Or(p.Message, "its container is not ready")
	}
	running(s, b, cmp.Or(p.Reason, sandboxv1.SandboxReasonDependenciesNotReady), why)
	return nil
}
