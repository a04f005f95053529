package main

import (
	"context"
	"strings"

	"github.com/alecthomas/kong"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/terminal"
)

// shortRefs rewrites arguments that name the session at hand and that kong would interpret as
// flags: "-@3" becomes "@3", and "-~1" and "-:/path" refer to the branch main. It does not change
// the values of flags, arguments after "--", and the arguments of commands that run programs.
func shortRefs(root *kong.Node, args []string) []string {
	out := make([]string, 0, len(args))
	node, value := root, false // value: the argument is the value of the flag before it
	for i, arg := range args {
		switch {
		case arg == "--" || passesOn(node):
			return append(out, args[i:]...)
		case value:
			value = false
		case strings.HasPrefix(arg, "-@"):
			arg = arg[1:]
		case strings.HasPrefix(arg, "-~"), strings.HasPrefix(arg, "-:"):
			arg = "@main" + arg[1:]
		case len(arg) > 1 && arg[0] == '-':
			value = wantsValue(node, arg)
		default:
			for _, child := range node.Children {
				if child.Name == arg {
					node = child
					break
				}
			}
		}
		out = append(out, arg)
	}
	return out
}

// passesOn reports whether the arguments of a command belong to a program.
func passesOn(node *kong.Node) bool {
	for _, p := range node.Positional {
		if p.Passthrough {
			return true
		}
	}
	return false
}

// wantsValue reports whether the argument after a flag is its value.
func wantsValue(node *kong.Node, arg string) bool {
	for _, group := range node.AllFlags(false) {
		for _, f := range group {
			if arg == "--"+f.Name || f.Short != 0 && arg[1] != '-' && strings.HasSuffix(arg, string(f.Short)) {
				return takesValue(f)
			}
		}
	}
	return false
}

type completeRefsCmd struct {
	Word     string `arg:"" optional:"" help:"Beginning of the reference."`
	Sessions bool   `help:"Print sessions only."`
}

// completeTurns is the number of turns of the session at hand that are offered, the newest first.
const completeTurns = 20

// Run prints the completions of a reference. It never fails, because a completing shell cannot show
// a message.
func (c *completeRefsCmd) Run(a *app) error {
	_ = a.withExecutor(func(ctx context.Context, x *executor.Executor) error {
		if name, _, ok := strings.Cut(c.Word, "@"); ok {
			return completeSelectors(ctx, a, x, name)
		}
		all, err := x.Sessions(ctx)
		if err != nil {
			return err
		}
		for _, s := range all {
			if s.Name != "" {
				terminal.Println(a.stdout, s.Name)
			}
		}
		hand, err := x.AtHand(ctx, a.env.session)
		if err != nil {
			return err
		}
		terminal.Println(a.stdout, "-")
		if c.Sessions {
			return nil
		}
		g, err := x.Log(ctx, string(hand.ID), completeTurns)
		if err != nil {
			return err
		}
		for _, t := range g.Turns {
			terminal.Printf(a.stdout, "%s%d\n", turnstone.TurnWord, t.Number)
		}
		return nil
	})
	return nil
}

// completeSelectors prints the branches and tags of a session, which name refers to.
func completeSelectors(ctx context.Context, a *app, x *executor.Executor, name string) error {
	ref := name
	if ref == "" {
		ref = "-"
	}
	if err := a.expand(ctx, x, &ref); err != nil {
		return err
	}
	g, err := x.Session(ctx, ref)
	if err != nil {
		return err
	}
	for _, b := range g.Branches {
		terminal.Println(a.stdout, name+"@"+b.Name)
	}
	for _, t := range g.Tags {
		terminal.Println(a.stdout, name+"@"+t.Name)
	}
	return nil
}
