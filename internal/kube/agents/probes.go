package agents

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Bounds of probes: what runs in sandboxes shall not keep the operator busy.
const (
	maxSeconds = 24 * 60 * 60
	maxCount   = 10_000
	maxHeaders = 32
	maxHeader  = 4096
	maxArgs    = 1000
	usualGrace = 30 * time.Second
	mostGrace  = time.Hour
)

// probes sets the probes of a container.
func probes(m *Main, pod *corev1.PodSpec, c *corev1.Container) error {
	m.Grace = usualGrace
	if g := pod.TerminationGracePeriodSeconds; g != nil {
		m.Grace = min(max(time.Duration(min(*g, maxSeconds))*time.Second, 0), mostGrace)
	}
	for _, p := range []struct {
		field string
		from  *corev1.Probe
		to    **Probe
	}{{"startupProbe", c.StartupProbe, &m.Startup}, {"readinessProbe", c.ReadinessProbe, &m.Readiness},
		{"livenessProbe", c.LivenessProbe, &m.Liveness}} {
		if p.from == nil {
			continue
		}
		var why string
		if *p.to, why = probe(p.from, c); why != "" {
			return Unsupported{"containers[0]." + p.field, why}
		}
	}
	return hooks(m, c)
}

// hooks sets the hooks of a container.
func hooks(m *Main, c *corev1.Container) error {
	l := c.Lifecycle
	if l == nil {
		return nil
	}
	if l.StopSignal != nil && *l.StopSignal != corev1.SIGTERM {
		return Unsupported{"containers[0].lifecycle.stopSignal", "only SIGTERM"}
	}
	for _, h := range []struct {
		field string
		from  *corev1.LifecycleHandler
		to    **Hook
	}{{"postStart", l.PostStart, &m.PostStart}, {"preStop", l.PreStop, &m.PreStop}} {
		if h.from == nil {
			continue
		}
		var why string
		if *h.to, why = hook(h.from, c); why != "" {
			return Unsupported{"containers[0].lifecycle." + h.field, why}
		}
	}
	return nil
}

// hook returns a hook, or why there cannot be one.
func hook(l *corev1.LifecycleHandler, c *corev1.Container) (h *Hook, why string) {
	h = &Hook{}
	switch {
	case l.Exec != nil:
		h.Exec, why = command(l.Exec)
	case l.HTTPGet != nil:
		h.HTTP, why = httpGet(l.HTTPGet, c)
	case l.Sleep != nil:
		h.Sleep = time.Duration(min(max(l.Sleep.Seconds, 0), maxSeconds)) * time.Second
	default:
		why = "has none of exec, httpGet and sleep"
	}
	return h, why
}

// command returns the command of a probe or hook.
func command(a *corev1.ExecAction) (argv []string, why string) {
	if len(a.Command) == 0 || len(a.Command) > maxArgs {
		return nil, fmt.Sprintf("exec has no command, or more than %d arguments", maxArgs)
	}
	return a.Command, ""
}

// probe returns a probe, or why there cannot be one.
func probe(p *corev1.Probe, c *corev1.Container) (*Probe, string) {
	seconds := func(n, usual int32) time.Duration {
		if n <= 0 {
			n = usual
		}
		return time.Duration(min(n, maxSeconds)) * time.Second
	}
	count := func(n, usual int32) int {
		if n <= 0 {
			n = usual
		}
		return int(min(n, maxCount))
	}
	q := &Probe{Delay: seconds(p.InitialDelaySeconds, 0), Period: seconds(p.PeriodSeconds, 10),
		Timeout: seconds(p.TimeoutSeconds, 1), Success: count(p.SuccessThreshold, 1), Failure: count(p.FailureThreshold, 3)}
	var why string
	switch {
	case p.Exec != nil:
		q.Exec, why = command(p.Exec)
	case p.HTTPGet != nil:
		q.HTTP, why = httpGet(p.HTTPGet, c)
	case p.TCPSocket != nil && p.TCPSocket.Host != "":
		why = "tcpSocket.host: only the sandbox itself is asked"
	case p.TCPSocket != nil:
		q.TCP, why = port(p.TCPSocket.Port, c)
	case p.GRPC != nil:
		q.GRPC = &GRPC{}
		if p.GRPC.Service != nil {
			q.GRPC.Service = *p.GRPC.Service
		}
		if q.GRPC.Port, why = port(intstr.FromInt32(p.GRPC.Port), c); len(q.GRPC.Service) > maxHeader {
			why = "grpc.service is too long"
		}
	default:
		why = "has none of exec, httpGet, tcpSocket and grpc"
	}
	return q, why
}

func httpGet(h *corev1.HTTPGetAction, c *corev1.Container) (*HTTPGet, string) {
	g := &HTTPGet{TLS: h.Scheme == corev1.URISchemeHTTPS, Path: h.Path}
	var why string
	if g.Port, why = port(h.Port, c); why != "" {
		return nil, why
	}
	if h.Host != "" {
		return nil, "httpGet.host: only the sandbox itself is asked"
	}
	if len(h.Path) > maxHeader || len(h.HTTPHeaders) > maxHeaders {
		return nil, "httpGet has too many headers, or too long a path"
	}
	for _, v := range h.HTTPHeaders {
		if len(v.Name) > maxHeader || len(v.Value) > maxHeader {
			return nil, "httpGet has a header that is too long"
		}
		g.Names, g.Values = append(g.Names, v.Name), append(g.Values, v.Value)
	}
	return g, ""
}

// port returns the number of a port, which may be named in the container.
func port(p intstr.IntOrString, c *corev1.Container) (uint16, string) {
	n := p.IntValue()
	if p.Type == intstr.String {
		for _, has := range c.Ports {
			if has.Name == p.StrVal {
				n = int(has.ContainerPort)
			}
		}
	}
	if n < 1 || n > 65535 {
		return 0, fmt.Sprintf("the port %.80q is no number, and no name of the container's ports", p.String())
	}
	return uint16(n), ""
}
