package hostcmd

import (
	"context"
	"io"
	"time"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/proof/key"
	"turnstone.dev/turnstone/internal/remote"
	"turnstone.dev/turnstone/internal/terminal"
)

// NodeCmd has the commands below turn node.
type NodeCmd struct {
	Ls nodeLsCmd `cmd:"" help:"List the nodes of a server."`
	Rm nodeRmCmd `cmd:"" help:"Forget nodes that do not come back."`
}

// The states of a node in a ServerNode.
const (
	nodeUp    = "up"
	nodeDrain = "draining"
	nodeLost  = "lost"
)

// A ServerNode describes a node of a server.
type ServerNode struct {
	Name    string          `json:"name"`
	State   string          `json:"state"` // up, draining or lost
	Version string          `json:"version,omitempty"`
	Key     string          `json:"key,omitempty"` // the fingerprint
	CPUs    uint32          `json:"cpus"`
	Memory  turnstone.Bytes `json:"memory"`
	// Used is the memory of machines.
	Used turnstone.Bytes `json:"used"`
	// Seen is when a lost node answered last.
	Seen time.Time `json:"seen,omitzero"`
}

// A NodesReport is the output of turn node ls.
type NodesReport struct {
	Nodes []ServerNode `json:"nodes"`
	// Waiting are the requests that wait for their turn or for room.
	Waiting int `json:"waiting"`
}

func serverNode(n *v1.Node, state string) ServerNode {
	r := ServerNode{Name: n.GetName(), State: state,
		Version: n.GetVersion(), CPUs: n.GetCapacity().GetCpus(),
		Memory: turnstone.Bytes(min(n.GetCapacity().GetMemory(), 1<<62)),
		Used:   turnstone.Bytes(min(n.GetUsed().GetMemory(), 1<<62))}
	if k, err := key.Parse(n.GetKey()); err == nil {
		r.Key = k.ID()
	}
	if n.GetDraining() && state == nodeUp {
		r.State = nodeDrain
	}
	return r
}

type nodeLsCmd struct {
	JSON bool `name:"json" help:"Print JSON."`
}

// Help is shown below the flags' summary.
func (c *nodeLsCmd) Help() string {
	return `A node is up, draining (it ends, and gets no new work) or lost (it does not answer; SEEN
says when it did). A token needs the right nodes:read; on the server's own machine, the
operator's socket needs no token.`
}

// Run lists the nodes.
func (c *nodeLsCmd) Run(a *cli.App) error {
	return withServer(a, func(ctx context.Context, s *remote.Server) error {
		answer, err := s.Server.ListNodes(ctx, connect.NewRequest(&v1.ListNodesRequest{}))
		if err != nil {
			return err
		}
		rep := NodesReport{Nodes: []ServerNode{}, Waiting: int(answer.Msg.Waiting)}
		for _, n := range answer.Msg.Nodes {
			rep.Nodes = append(rep.Nodes, serverNode(n, nodeUp))
		}
		for _, l := range answer.Msg.Lost {
			n := serverNode(l.GetNode(), nodeLost)
			if l.Since.IsValid() {
				n.Seen = l.Since.AsTime()
			}
			rep.Nodes = append(rep.Nodes, n)
		}
		return a.Result(rep, nil, func(w io.Writer) {
			terminal.List(w, false, "NAME\tSTATE\tVERSION\tCPUS\tMEMORY\tUSED\tSEEN\tKEY", rep.Nodes,
				func(n ServerNode) []any {
					seen := "now"
					if !n.Seen.IsZero() {
						seen = n.Seen.UTC().Format(time.RFC3339)
					}
					return []any{n.Name, n.State, n.Version, n.CPUs, n.Memory, n.Used, seen, n.Key}
				})
		})
	})
}

type nodeRmCmd struct {
	Node []string `arg:"" name:"node" help:"Names of lost nodes, as turn node ls prints them."`
	JSON bool     `name:"json" help:"Print JSON."`
}

// A RemovedNodes is the output of turn node rm: what was lost with the nodes, of all tenants.
type RemovedNodes struct {
	Removed   []string `json:"removed"`
	Sandboxes int      `json:"sandboxes"`
	Turns     int      `json:"turns"`
	Sessions  int      `json:"sessions"`
	Snapshots int      `json:"snapshots"`
}

// Help is shown below the flags' summary.
func (c *nodeRmCmd) Help() string {
	return `What the node had counts as lost at once. If it comes back all the same, its sandboxes
and turns are removed there, and its sessions and snapshots are there again. A node
that answers is refused: end its program first. Without this command a lost node is
forgotten after the server's records.forget (168h by default). A token needs the right
nodes:write.`
}

// Run removes the nodes.
func (c *nodeRmCmd) Run(a *cli.App) error {
	return withServer(a, func(ctx context.Context, s *remote.Server) error {
		rep := RemovedNodes{Removed: []string{}}
		for _, name := range c.Node {
			if err := turnstone.CheckName("node", name); err != nil {
				return a.Partial(rep, err)
			}
			answer, err := s.Server.RemoveNode(ctx, connect.NewRequest(&v1.RemoveNodeRequest{Name: name}))
			if err != nil {
				return a.Partial(rep, err)
			}
			rep.Removed = append(rep.Removed, name)
			rep.Sandboxes += int(answer.Msg.Sandboxes)
			rep.Turns += int(answer.Msg.Turns)
			rep.Sessions += int(answer.Msg.Sessions)
			rep.Snapshots += int(answer.Msg.Snapshots)
		}
		return a.Result(rep, nil, func(w io.Writer) {
			terminal.Printf(w, "lost: %d sandboxes, %d turns, %d sessions, %d snapshots\n", rep.Sandboxes, rep.Turns,
				rep.Sessions, rep.Snapshots)
		})
	})
}
