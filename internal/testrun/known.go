package main

// known are tests that have failed on a busy machine, or that minded one: a busy run begins with them.
func known() []unit {
	script := func(names string) unit { return unit{"cmd/turn", "^" + machineScript + "$/^(" + names + ")$"} }
	return []unit{
		{"cmd/turn-server", "^Test(ForeignKey|MachineShared|Protocols)$"},
		{"internal/cdp", "^Test(FloodOfRequests|SandboxThatDoesNotRead|FullQueue)$"},
		{"internal/driver/gvisor", "^TestConsoleFlood$"},
		{"internal/driver/gvisor", "^TestConformance$/^another_shape$"},
		{"internal/driver/qemu", "^Test(Strict|KernelsThatDoNotStart)$"},
		{"internal/driver/qemu", "^TestConformance$/^(live_fork|runs_commands)$"},
		{"internal/e2b", "^TestPages$"},
		{"internal/guest/agent", "^Test(Connect|KillTree|BusyBackground|Streaming)$"},
		{"internal/guest/process", "^TestSettle$"},
		{"internal/guest/script", "^TestTimeout$"},
		{"internal/kube/agents", "^Test(ClaimBesideSandbox|Sandbox)$"},
		{"internal/kube/control", "^TestNodesLeaveAndJoin$"},
		{"internal/keyring/agewrap", "^TestPluginHangs$"},
		{"internal/network", "^TestWithin"},
		{"internal/network/netstack", "^Test(HowConnectionsFail|NamesAtTheConnection|UDP)$"},
		{"internal/server/controller", "^Test(NewSessionOfSandbox|SessionWhilePlanned|QuotaOfTemplates|FloodOfCreations)$"},
		{"internal/server/markertest", "^TestMachineMarker$"},
		{"internal/server/node/tenants/public", "^TestImagesAtOnce$"},
		{"internal/server/relay", "^Test(Ends|SlowLoris)$"},
		{"sandboxes", "^Test(Exec|ChannelsLeaveRoom)$"},
		{"sandboxes/access", "^Test(SignalIsLost|SilentCommand)$"},
		{"sandboxes/performed", "^TestSettle$"},
		{"wire", "^TestStreams$"},
		script("badsteps|channel|failing|lifetime|network|remote-examples|remote-operated|remote-pool|remote-restart|remote-sandbox|sandbox-exec|" +
			"serve-local|terminal"),
	}
}
