package flags

import (
	"os"
	"strings"

	"turnstone.dev/turnstone"
)

// ReadSecrets reads the values of secrets that are only named from turn's own environment.
func ReadSecrets(given []string) ([]string, error) {
	var all []string
	for _, s := range given {
		name, _, ok := strings.Cut(s, "=")
		if !ok {
			value, there := os.LookupEnv(name)
			if !there {
				return nil, turnstone.Errorf("run", turnstone.KindInvalid, "--secret "+name,
					"the variable is not set").
					WithHint("export the variable first; " +
						"other users can see a value on the command line")
			}
			s = name + "=" + value
		}
		all = append(all, s)
	}
	return all, nil
}
