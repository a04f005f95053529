package e2b

import (
	"encoding/json"
	"time"

	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/server/auth"
)

// envdVersion is the version of E2B's daemon whose calls the door answers. Clients choose by it what
// they call.
const envdVersion = "0.6.4"

// A newSandbox is the body of a request to create a sandbox.
type newSandbox struct {
	TemplateID      string            `json:"templateID"`
	Timeout         *int64            `json:"timeout"` // seconds
	AutoPause       *bool             `json:"autoPause"`
	AutoPauseMemory *bool             `json:"autoPauseMemory"`
	AutoResume      *autoResume       `json:"autoResume"`
	Secure          *bool             `json:"secure"`
	AllowInternet   *bool             `json:"allow_internet_access"`
	Network         *newNetwork       `json:"network"`
	Metadata        map[string]string `json:"metadata"`
	EnvVars         map[string]string `json:"envVars"`
	MCP             json.RawMessage   `json:"mcp"`
	IAM             json.RawMessage   `json:"iam"`
	VolumeMounts    []json.RawMessage `json:"volumeMounts"`
}

type autoResume struct {
	Enabled bool   `json:"enabled"`
	Timeout *int64 `json:"timeout"`
}

type newNetwork struct {
	AllowPublicTraffic *bool           `json:"allowPublicTraffic"`
	AllowOut           []string        `json:"allowOut"`
	DenyOut            []string        `json:"denyOut"`
	EgressProxy        json.RawMessage `json:"egressProxy"`
	MaskRequestHost    *string         `json:"maskRequestHost"`
	HTTPSPorts         json.RawMessage `json:"httpsPorts"`
	Rules              json.RawMessage `json:"rules"`
}

// A sandboxAnswer is a sandbox to connect to.
type sandboxAnswer struct {
	TemplateID   string `json:"templateID"`
	SandboxID    string `json:"sandboxID"`
	Alias        string `json:"alias,omitempty"`
	ClientID     string `json:"clientID"`
	EnvdVersion  string `json:"envdVersion"`
	DaemonToken  string `json:"envdAccessToken,omitempty"`
	TrafficToken string `json:"trafficAccessToken,omitempty"`
	Domain       string `json:"domain"`
}

// A sandboxInfo is a sandbox in lists, and with more when it is asked for alone.
type sandboxInfo struct {
	TemplateID  string            `json:"templateID"`
	Alias       string            `json:"alias,omitempty"`
	SandboxID   string            `json:"sandboxID"`
	ClientID    string            `json:"clientID"`
	StartedAt   time.Time         `json:"startedAt"`
	EndAt       time.Time         `json:"endAt"`
	EnvdVersion string            `json:"envdVersion"`
	CPUs        uint32            `json:"cpuCount"`
	Memory      uint64            `json:"memoryMB"`
	Disk        uint64            `json:"diskSizeMB"`
	Metadata    map[string]string `json:"metadata"`
	State       string            `json:"state"`

	DaemonToken string     `json:"envdAccessToken,omitempty"`
	Domain      string     `json:"domain,omitempty"`
	Internet    *bool      `json:"allowInternetAccess,omitempty"`
	Lifecycle   *lifecycle `json:"lifecycle,omitempty"`
}

type lifecycle struct {
	AutoResume bool   `json:"autoResume"`
	OnTimeout  string `json:"onTimeout"`
}

// The states of E2B.
const (
	stateRunning = "running"
	statePaused  = "paused"
)

const mebi = 1 << 20

// longest is the longest time to a sandbox's stop, and that of a paused one.
const longest = 30 * 24 * time.Hour

// infoOf returns a sandbox of the control API for a caller.
func infoOf(s *v1.Sandbox) sandboxInfo {
	i := sandboxInfo{TemplateID: s.Template, Alias: s.Template, SandboxID: s.SandboxId, ClientID: s.Node,
		StartedAt: s.GetCreated().AsTime(), EnvdVersion: envdVersion, CPUs: s.GetMachine().GetCpus(),
		Memory: s.GetMachine().GetMemory() / mebi, Disk: s.GetMachine().GetDisk() / mebi,
		Metadata: map[string]string{}, State: stateRunning}
	if i.EndAt = i.StartedAt.Add(longest); s.Expires != nil {
		i.EndAt = s.Expires.AsTime()
	}
	for k, v := range s.Metadata {
		i.Metadata[k] = v
	}
	if s.Paused {
		i.State = statePaused
	}
	return i
}

// answerOf returns a sandbox for a caller, with the tokens that the caller may have.
func (d *Door) answerOf(s *v1.Sandbox, p auth.Principal) sandboxAnswer {
	id := turnstone.SandboxID(s.SandboxId)
	a := sandboxAnswer{TemplateID: s.Template, Alias: s.Template, SandboxID: s.SandboxId,
		ClientID: s.Node, EnvdVersion: envdVersion, Domain: d.o.Domain}
	if mayConnect(p, id) {
		a.DaemonToken, a.TrafficToken = d.o.Key.Daemon(id), d.o.Key.Traffic(id)
	}
	return a
}

func mayConnect(p auth.Principal, id turnstone.SandboxID) bool {
	return p.Allow(auth.Request{Scope: auth.SandboxesConnect, Sandbox: id}) == nil
}
