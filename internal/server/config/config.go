// Package config reads the settings of turn serve: a TOML file, and an environment variable for
// every setting. docs/server.md has the table of settings, which a test compares with this package.
//
// Errors name the key, and its line or variable. No setting holds a secret: a setting that needs
// one names its file.
package config

import (
	"time"

	"turnstone.dev/turnstone"
)

// File is the name of the file in the state directory.
const File = "server.toml"

// Prefix begins the name of each variable: TURN_SERVER_LIMITS_IDLE is limits.idle.
const Prefix = "TURN_SERVER_"

// The roles of a server.
const (
	Gateway    = "gateway"
	Controller = "controller"
	Node       = "node"
)

// The values of Config.Plaintext.
const (
	PlaintextOff      = "off"
	PlaintextLoopback = "loopback"
	PlaintextOn       = "on"
)

// LeastRevocations is the least value of Tokens.Revocations.
const LeastRevocations = 5 * time.Second

// A Config has all settings. The tags are the source of the documentation: toml is the key, default
// the value of a file that does not name the key, min and max are bounds, oneof lists all values,
// kind says what a text has to be, and text that a list may be a single text. help.go describes each setting.
type Config struct {
	Name      string   `toml:"name" default:"turnstone"`
	Roles     []string `toml:"roles" default:"gateway,controller,node" oneof:"gateway,controller,node"`
	Plaintext string   `toml:"plaintext" default:"loopback" oneof:"off,loopback,on"`

	Listen    Listen    `toml:"listen"`
	TLS       TLS       `toml:"tls"`
	Peers     Peers     `toml:"peers"`
	Machine   Machine   `toml:"node"`
	Tokens    Tokens    `toml:"tokens"`
	Limits    Limits    `toml:"limits"`
	Records   Records   `toml:"records"`
	Audit     Audit     `toml:"audit"`
	Log       Log       `toml:"log"`
	Quota     Quota     `toml:"quota"`
	Tenants   []Tenant  `toml:"tenants"`
	Issuers   []Issuer  `toml:"issuers"`
	Telemetry Telemetry `toml:"telemetry"`
	MCP       MCP       `toml:"mcp"`
	Pools     []Pool    `toml:"pools"`
	E2B       E2B       `toml:"e2b"`
}

// The values of settings that are on or off.
const (
	On  = "on"
	Off = "off"
)

// E2B is the door for E2B's clients, which ends at the node.
type E2B struct {
	Listen string `toml:"listen" default:"off" kind:"address"`
	// Domain is the domain below which PORT-ID is a port of a sandbox, and its port if URLs name one.
	Domain   string `toml:"domain" kind:"domain"`
	Sessions string `toml:"sessions" default:"on" oneof:"on,off"`
}

// MCP is the endpoint for clients of the Model Context Protocol, whose contents this process sees.
type MCP struct {
	Listen string        `toml:"listen" default:"off" kind:"address"`
	Idle   time.Duration `toml:"idle" default:"30m" min:"1s" max:"24h"`
}

// Listen says where callers connect.
type Listen struct {
	Address string `toml:"address" default:"127.0.0.1:7420" kind:"address"`
	Socket  string `toml:"socket" default:"server.sock" kind:"file"`
	// Proxies are trusted to name the caller's address and to end TLS.
	Proxies []string `toml:"proxies" kind:"network"`
	// Origins are those of pages that may call from a browser.
	Origins []string `toml:"origins" kind:"origin"`
}

// TLS is the server's certificate for callers.
type TLS struct {
	Certificate string `toml:"certificate" kind:"file"`
	Key         string `toml:"key" kind:"secret"`
}

// Peers connects the roles of several processes.
type Peers struct {
	Listen      string   `toml:"listen" kind:"peer"`
	Address     string   `toml:"address" kind:"peer"`
	Controller  []string `toml:"controller" kind:"peer" text:"one"`
	Authority   string   `toml:"authority" kind:"file"`
	Certificate string   `toml:"certificate" kind:"file"`
	Key         string   `toml:"key" kind:"secret"`
}

// Machine is this machine as a node.
type Machine struct {
	// Name is never empty in a Config of Load.
	Name string `toml:"name" kind:"node"`
	// Certificate is the node's certificate by the operator's root.
	Certificate string `toml:"certificate" kind:"file"`

	Turns  int    `toml:"turns" default:"16" min:"1" max:"10000"`
	Expose string `toml:"expose" kind:"host"`
	// TrustController: see control.Options.
	TrustController string `toml:"trust_controller" default:"off" oneof:"off,on"`

	// PoolMemory and PoolMakers bound the sandboxes of all Pools together.
	PoolMemory turnstone.Bytes `toml:"pool_memory" default:"8GiB" min:"0B" max:"1024TiB"`
	PoolMakers int             `toml:"pool_makers" default:"2" min:"1" max:"64"`

	// Database and Store have the sessions of all nodes, as TURN_DATABASE and TURN_STORE; empty: what
	// these say. A controller that has Database knows that each node has each session.
	Database string `toml:"database" kind:"shared"`
	Store    string `toml:"store" kind:"bucket"`
	Retries  int    `toml:"retries" default:"1" min:"0" max:"10"`

	// WarmTurns and WarmMemory bound the machines that wait for the next turns of sessions, each for
	// WarmIdle.
	WarmTurns  int             `toml:"warm_turns" default:"4" min:"0" max:"1000"`
	WarmMemory turnstone.Bytes `toml:"warm_memory" default:"4GiB" min:"0B" max:"1024TiB"`
	WarmIdle   time.Duration   `toml:"warm_idle" default:"10m" min:"1s" max:"24h"`
}

// A Pool is sandboxes that are ready before a client asks for them: of a node, or of all nodes
// together.
type Pool struct {
	Target   string          `toml:"target" default:"node" oneof:"node,fleet"`
	Template string          `toml:"template"`
	Tenant   string          `toml:"tenant" default:"local"`
	CPUs     int             `toml:"cpus" default:"0" min:"0" max:"64"`
	Memory   turnstone.Bytes `toml:"memory" default:"0B" min:"0B" max:"1TiB"`
	Disk     turnstone.Bytes `toml:"disk" default:"0B" min:"0B" max:"16TiB"`
	Min      int             `toml:"min" default:"1" min:"0" max:"10000"`
	Max      int             `toml:"max" default:"4" min:"1" max:"10000"`
	Idle     time.Duration   `toml:"idle" default:"10m" min:"1s" max:"24h"`
	Cover    time.Duration   `toml:"cover" default:"10s" min:"1s" max:"1h"`
}

// The targets of a Pool.
const (
	AtNode  = "node"  // this node keeps them
	AtFleet = "fleet" // the controller divides them among nodes
)

// PoolsAt returns the pools of a target.
func (c *Config) PoolsAt(target string) (all []Pool) {
	for _, p := range c.Pools {
		if p.Target == target {
			all = append(all, p)
		}
	}
	return all
}

// Tokens bounds tokens of all issuers.
type Tokens struct {
	Key         string        `toml:"key" default:"keys/token" kind:"secret"`
	Replace     string        `toml:"replace" default:"off" oneof:"off,on"`
	Longest     time.Duration `toml:"longest" default:"2160h" min:"1s" max:"8784h"`
	Leeway      time.Duration `toml:"leeway" default:"30s" min:"0s" max:"2m"`
	Revocations time.Duration `toml:"revocations" default:"1m" min:"5s" max:"1h"`
}

// Limits bounds callers and the server's end.
type Limits struct {
	Connections int             `toml:"connections" default:"10000" min:"1" max:"1000000"`
	Idle        time.Duration   `toml:"idle" default:"5m" min:"1s" max:"24h"`
	Unused      time.Duration   `toml:"unused" default:"0s" min:"0s" max:"8784h"`
	Handshake   time.Duration   `toml:"handshake" default:"10s" min:"100ms" max:"5m"`
	Request     turnstone.Bytes `toml:"request" default:"1MiB" min:"1KiB" max:"64MiB"`
	Rate        int             `toml:"rate" default:"50" min:"1" max:"1000000"`
	Burst       int             `toml:"burst" default:"100" min:"1" max:"1000000"`
	Wait        time.Duration   `toml:"wait" default:"30s" min:"1ms" max:"10m"`
	Waiting     int             `toml:"waiting" default:"1000" min:"1" max:"100000"`
	End         time.Duration   `toml:"end" default:"5m" min:"0s" max:"24h"`
}

// Records is the controller's database.
type Records struct {
	Database string `toml:"database" default:"server.db" kind:"database"`
	// Passwords is a file as PGPASSFILE names one.
	Passwords string        `toml:"passwords" kind:"secret"`
	Keep      time.Duration `toml:"keep" default:"168h" min:"1m" max:"8784h"`
	Lease     time.Duration `toml:"lease" default:"6s" min:"1s" max:"5m"`
	Forget    time.Duration `toml:"forget" default:"168h" min:"0s" max:"8784h"`
}

// Quota bounds each tenant that has no bounds of its own. 0 bounds nothing.
type Quota struct {
	Sandboxes int             `toml:"sandboxes" default:"1000" min:"0" max:"1000000"`
	CPUs      int             `toml:"cpus" default:"0" min:"0" max:"1000000"`
	Memory    turnstone.Bytes `toml:"memory" default:"0" min:"0" max:"1024TiB"`
	Disk      turnstone.Bytes `toml:"disk" default:"0" min:"0" max:"1024TiB"`
	Stored    turnstone.Bytes `toml:"stored" default:"0" min:"0" max:"1024TiB"`
	BytesOut  turnstone.Bytes `toml:"bytes_out" default:"0" min:"0" max:"1024TiB"`
	Turns     int             `toml:"turns" default:"6000" min:"0" max:"1000000"`
	Pool      int             `toml:"pool" default:"0" min:"0" max:"1000000"`
}

// A Tenant has bounds of its own. What its table does not name is as in Quota.
type Tenant struct {
	Name      string          `toml:"name" kind:"node"`
	Sandboxes int             `toml:"sandboxes" min:"0" max:"1000000"`
	CPUs      int             `toml:"cpus" min:"0" max:"1000000"`
	Memory    turnstone.Bytes `toml:"memory" min:"0" max:"1024TiB"`
	Disk      turnstone.Bytes `toml:"disk" min:"0" max:"1024TiB"`
	Stored    turnstone.Bytes `toml:"stored" min:"0" max:"1024TiB"`
	BytesOut  turnstone.Bytes `toml:"bytes_out" min:"0" max:"1024TiB"`
	Turns     int             `toml:"turns" min:"0" max:"1000000"`
	Pool      int             `toml:"pool" min:"0" max:"1000000"`
}

// Quota returns the bounds of the tenant.
func (t Tenant) Quota() Quota {
	return Quota{t.Sandboxes, t.CPUs, t.Memory, t.Disk, t.Stored, t.BytesOut, t.Turns, t.Pool}
}

// QuotaOf returns the bounds of a tenant.
func (c *Config) QuotaOf(tenant string) Quota {
	for _, t := range c.Tenants {
		if t.Name == tenant {
			return t.Quota()
		}
	}
	return c.Quota
}

// Audit is the controller's audit log.
type Audit struct {
	Folder string          `toml:"folder" default:"audit" kind:"file"`
	Size   turnstone.Bytes `toml:"size" default:"64MiB" min:"4KiB" max:"64GiB"`
	Sync   time.Duration   `toml:"sync" default:"1s" min:"10ms" max:"1m"`
}

// Log is the server's log, on standard error.
type Log struct {
	Level  string `toml:"level" default:"info" oneof:"debug,info,warn,error"`
	Format string `toml:"format" default:"text" oneof:"text,json"`
}

// Telemetry is what the server tells about itself: a page for Prometheus, and an OpenTelemetry
// collector. Both are off by default.
type Telemetry struct {
	Listen string `toml:"listen" default:"off" kind:"address"`
	// Network permits an address of Listen that other machines reach: the page has no authentication.
	Network  string        `toml:"network" default:"off" oneof:"off,on"`
	Endpoint string        `toml:"endpoint" kind:"url"`
	Headers  string        `toml:"headers" kind:"secret"`
	Sample   int           `toml:"sample" default:"100" min:"0" max:"100"`
	Interval time.Duration `toml:"interval" default:"1m" min:"1s" max:"1h"`
	// Tenants are those with a label of their own.
	Tenants []string `toml:"tenants" kind:"node"`
}

// An Issuer is an OpenID Connect issuer. Its tokens get at most what is here.
type Issuer struct {
	Issuer         string            `toml:"issuer"`
	Audiences      []string          `toml:"audiences"`
	Algorithms     []string          `toml:"algorithms" default:"RS256,ES256,EdDSA"`
	Tenant         string            `toml:"tenant"`
	Tenants        []string          `toml:"tenants"`
	Scopes         []string          `toml:"scopes"`
	GrantScopes    []string          `toml:"grant_scopes"`
	GrantSessions  []string          `toml:"grant_sessions"`
	GrantTemplates []string          `toml:"grant_templates"`
	Require        map[string]string `toml:"require"`
	Longest        time.Duration     `toml:"longest" default:"24h" min:"1s" max:"8784h"`
	Fresh          time.Duration     `toml:"fresh" default:"15m" min:"1s" max:"24h"`
	Outage         time.Duration     `toml:"outage" default:"24h" min:"0s" max:"168h"`
}

// Has reports whether this process has a role.
func (c *Config) Has(role string) bool {
	for _, r := range c.Roles {
		if r == role {
			return true
		}
	}
	return false
}
