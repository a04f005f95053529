package domaincmd

import (
	"errors"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/keyring"
	"turnstone.dev/turnstone/internal/terminal"
)

// complaints says each cause of failures once: one wrapper that fails makes all domains fail alike.
type complaints struct {
	said map[string]int // by cause: the domains that have failed so
	of   []string       // the causes, in order
}

// failure reports a domain, on standard error if the output is for people.
func (c *complaints) failure(a *cli.App, json bool, id keyring.ID, err error) Failure {
	if !json {
		cause := rootOf(err).Error() + "\n" + turnstone.HintOf(err)
		if c.said == nil {
			c.said = map[string]int{}
		}
		if c.said[cause]++; c.said[cause] == 1 {
			c.of = append(c.of, cause)
			a.Complain(err)
		}
	}
	return Failure{Domain: id.String(), Error: cli.NewErrorBody(err)}
}

// end says how many domains have failed as one that was reported.
func (c *complaints) end(a *cli.App) {
	for i, cause := range c.of {
		if more := c.said[cause] - 1; more > 0 && len(c.of) == 1 {
			terminal.Printf(a.Stderr, "%d more domains fail for the same reason\n", more)
		} else if more > 0 {
			terminal.Printf(a.Stderr, "%d more domains fail for reason %d\n", more, i+1)
		}
	}
}

// rootOf returns what err is caused by, without the domains that its errors name.
func rootOf(err error) error {
	for {
		var e *turnstone.Error
		if !errors.As(err, &e) || e.Err == nil {
			return err
		}
		err = e.Err
	}
}
