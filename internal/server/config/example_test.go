package config_test

import (
	"fmt"

	"turnstone.dev/turnstone/internal/server/config"
)

// A file and a variable, and what --check-config says about a mistake in each.
func ExampleParse() {
	c, err := config.Parse("/var/lib/turn", "[limits]\nidle = \"10m\"\n",
		[]string{"TURN_SERVER_LOG_LEVEL=debug"})
	fmt.Println(c.Limits.Idle, c.Log.Level, c.Listen.Socket, err)

	_, err = config.Parse("/var/lib/turn", "[limits]\nidle = \"10m\"\nidel = \"5m\"\n",
		[]string{"TURN_SERVER_LOG_LEVEL=loud"})
	fmt.Println(err)

	// Output:
	// 10m0s debug /var/lib/turn/server.sock <nil>
	// TURN_SERVER_LOG_LEVEL: log.level: "loud" is not one of debug, info, warn, error (use debug, info, warn, error)
	// server.toml:3: limits.idel: is not a setting (the nearest one is limits.idle)
}
