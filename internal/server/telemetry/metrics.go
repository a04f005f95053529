package telemetry

import "slices"

// A Kind is what a metric counts with.
type Kind string

// The kinds. A histogram has buckets of seconds.
const (
	Counter   Kind = "counter"
	Gauge     Kind = "gauge"
	Histogram Kind = "histogram"
)

// A Metric describes a metric. All values of its labels come from the server, or from a list that
// the operator wrote: a tenant cannot make series.
type Metric struct {
	Name   string
	Kind   Kind
	Labels []string
	Help   string

	role     string    // what has it
	measured bool      // a Measurer has its values
	buckets  []float64 // of a histogram
}

// Buckets in seconds.
var (
	short = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}
	long  = []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200, 86400}
)

// Names of the metrics that this package counts.
const (
	requests       = "turnstone_gateway_requests_total"
	requestSeconds = "turnstone_gateway_request_seconds"
	calls          = "turnstone_calls_total"
	callSeconds    = "turnstone_call_seconds"
	streams        = "turnstone_streams"
	handshakes     = "turnstone_handshakes_total"
	handshake      = "turnstone_handshake_seconds"
	turnsEnded     = "turnstone_turns_total"
	turnSeconds    = "turnstone_turn_seconds"
	phaseSeconds   = "turnstone_turn_phase_seconds"
	turnsRunning   = "turnstone_turns_running"
	writes         = "turnstone_records_writes_total"
	writeSeconds   = "turnstone_records_write_seconds"
	waitSeconds    = "turnstone_records_wait_seconds"
	exports        = "turnstone_telemetry_exports_total"
	build          = "turnstone_build_info"
)

var metrics = []Metric{
	{Name: build, Kind: Gauge, Labels: []string{"version"}, role: "all", Help: "1, with the version of the program."},
	{Name: exports, Kind: Counter, Labels: []string{"signal", "result"}, role: "all",
		Help: "Exports to the OpenTelemetry collector: signal traces or metrics, result ok or failed."},
	{Name: calls, Kind: Counter, Labels: []string{"role", "method", "code"}, role: "controller, node",
		Help: "Calls that a role answered, with the code of Connect; ok is success."},
	{Name: callSeconds, Kind: Histogram, Labels: []string{"role", "method"}, buckets: short,
		role: "controller, node", Help: "Time to the answer of a call; streams are not in it."},
	{Name: streams, Kind: Gauge, Labels: []string{"role", "method"}, role: "controller, node",
		Help: "Open streams of calls, such as watches."},

	{Name: requests, Kind: Counter, Labels: []string{"method", "status"}, role: "gateway",
		Help: "Requests of callers by method and HTTP status; 101 is an open channel."},
	{Name: requestSeconds, Kind: Histogram, Labels: []string{"method"}, buckets: short, role: "gateway",
		Help: "Time until a request was answered, or a channel was open; streams are not in it."},
	{Name: "turnstone_gateway_connections", Kind: Gauge, Labels: []string{"listener"}, measured: true,
		role: "gateway", Help: "Connections of callers: listener network or socket."},
	{Name: "turnstone_gateway_channels", Kind: Gauge, measured: true, role: "gateway",
		Help: "Open channels of callers."},
	{Name: "turnstone_relay_bytes_total", Kind: Counter, Labels: []string{"direction"}, measured: true,
		role: "gateway", Help: "Ciphertext of channels that was relayed: direction to_node or to_client."},

	{Name: "turnstone_controller_leads", Kind: Gauge, measured: true,
		Help: "1 while this controller leads, 0 while it waits as a standby."},
	{Name: "turnstone_controller_nodes", Kind: Gauge, Labels: []string{"state"}, measured: true,
		role: "controller", Help: "Nodes that registered: state up or lost."},
	{Name: "turnstone_controller_watches", Kind: Gauge, measured: true, role: "controller",
		Help: "Open watches of callers."},
	{Name: "turnstone_controller_reports_waiting", Kind: Gauge, measured: true, role: "controller",
		Help: "Reports of nodes that are not in the records yet."},
	{Name: writes, Kind: Counter, Labels: []string{"result"}, role: "controller",
		Help: "Writes to the records by result: ok, refused, busy (SQLite was locked for 20 s), full, damaged or failed."},
	{Name: writeSeconds, Kind: Histogram, buckets: short, role: "controller",
		Help: "Time of a write to the records, without the wait for the earlier writer."},
	{Name: waitSeconds, Kind: Histogram, buckets: short, role: "controller",
		Help: "Time that a write to the records waited for earlier ones."},
	{Name: "turnstone_records_bytes", Kind: Gauge, measured: true, role: "controller",
		Help: "Size of the database of records, with its log."},

	{Name: turnsEnded, Kind: Counter, Labels: []string{"result", "tenant"}, role: "node",
		Help: "Turns that ended, by result: passed, failed, timeout, error, or none if the request was refused."},
	{Name: turnSeconds, Kind: Histogram, Labels: []string{"result"}, buckets: long, role: "node",
		Help: "Time of a turn."},
	{Name: phaseSeconds, Kind: Histogram, Labels: []string{"phase"}, buckets: long, role: "node",
		Help: "Time of a phase of a turn, such as queue, restore, configure, steps, collect and keep."},
	{Name: turnsRunning, Kind: Gauge, Labels: []string{"tenant"}, role: "node", Help: "Turns that run."},
	{Name: handshakes, Kind: Counter, Labels: []string{"result"}, role: "node",
		Help: "Handshakes of channels that end at the node: result ok, refused, or the manipulation that was found."},
	{Name: handshake, Kind: Histogram, buckets: short, role: "node",
		Help: "Time of a handshake that succeeded."},
	{Name: "turnstone_node_channels", Kind: Gauge, measured: true, role: "node",
		Help: "Open channels to the node and its sandboxes."},
	{Name: "turnstone_sandboxes", Kind: Gauge, Labels: []string{"state"}, measured: true, role: "node",
		Help: "Sandboxes by state: creating, ready, running, paused, stopped or failed."},
	{Name: "turnstone_snapshots", Kind: Gauge, measured: true, role: "node",
		Help: "Snapshots that callers keep."},
	{Name: "turnstone_sessions", Kind: Gauge, measured: true, role: "node", Help: "Sessions."},
	{Name: "turnstone_tenants", Kind: Gauge, measured: true, role: "node",
		Help: "Tenants with state at the node."},
	{Name: "turnstone_store_bytes", Kind: Gauge, measured: true, role: "node",
		Help: "Size of the context stores, as measured last."},
	{Name: "turnstone_disk_bytes", Kind: Gauge, Labels: []string{"state"}, measured: true, role: "node",
		Help: "Disk of the state directory: state free or used."},
	{Name: "turnstone_node_capacity", Kind: Gauge, Labels: []string{"resource"}, measured: true,
		role: "node", Help: "What machines may have: resource cpus (shares of CPUs), memory_bytes or disk_bytes."},
	{Name: "turnstone_node_used", Kind: Gauge, Labels: []string{"resource"}, measured: true,
		role: "node", Help: "What machines have of turnstone_node_capacity."},

	{Name: "turnstone_pool_sandboxes", Kind: Gauge, Labels: []string{"state"}, measured: true,
		role: "node, with a pool", Help: "Sandboxes of the warm pool: state ready or filling."},
	{Name: "turnstone_pool_claims_total", Kind: Counter, Labels: []string{"result"}, measured: true,
		role: "node, with a pool", Help: "Claims: result warm, cold or refused."},
	{Name: "turnstone_pool_waiting", Kind: Gauge, measured: true, role: "node, with a pool",
		Help: "Claims that wait."},
	{Name: "turnstone_pool_discarded_total", Kind: Counter, Labels: []string{"reason"}, measured: true,
		role: "node, with a pool", Help: "Sandboxes that were removed unused: reason idle, died, changed or memory."},
	{Name: "turnstone_warm_turns", Kind: Gauge, Labels: []string{"state"}, measured: true,
		role: "node, with node.warm_turns", Help: "Machines for the next turns of sessions: state ready or filling."},
	{Name: "turnstone_warm_turn_claims_total", Kind: Counter, Labels: []string{"result"}, measured: true,
		role: "node, with node.warm_turns", Help: "Turns that asked for a machine that waits: result warm, cold or died (and then cold)."},
	{Name: "turnstone_warm_turns_discarded_total", Kind: Counter, Labels: []string{"reason"}, measured: true,
		role: "node, with node.warm_turns", Help: "Machines that no turn used: reason idle, died, changed, failed or memory."},
	{Name: "turnstone_audit_failures_total", Kind: Counter, measured: true, role: "controller",
		Help: "Entries that could not be written to the audit log."},
}

// Metrics describes all metrics of this program. The page also has those of the Go runtime and of
// the process, whose names begin with go_ and process_.
func Metrics() []Metric { return slices.Clone(metrics) }

// phases are the phases of turns that have a label of their own: packages of the node name them, and
// a test compares.
var phases = []string{"session", "queue", "take", "claim", "substrate", "template", "kernel", "layers",
	"create", "restore", "resume", "environment", "configure", "add", "steps", "get", "snapshot",
	"collect", "close", "keep"}
