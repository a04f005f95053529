// Package machines asks a cluster for machines as the cluster autoscaler understands it: with ordinary
// pods. Sandboxes are no pods, so the autoscaler cannot see that they need a machine, or that one is
// in use. A pod that stands for the room of one machine says both: while none has room for it, the
// autoscaler adds a machine; while work is on its machine, it may not be evicted; without it, the
// machine is idle, and goes.
//
// The package decides how many such pods there are, and which go; the scheduler and the autoscaler
// decide the rest.
package machines
