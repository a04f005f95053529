package process

import "strings"

// MergeEnv returns base with the variables of more set, in order; the last value of a name wins, as
// in the shell. It drops entries that are not NAME=VALUE.
func MergeEnv(base, more []string) []string {
	out := make([]string, 0, len(base)+len(more))
	index := make(map[string]int, len(base)+len(more))
	for _, list := range [2][]string{base, more} {
		for _, kv := range list {
			name, _, ok := strings.Cut(kv, "=")
			if !ok || name == "" || strings.IndexByte(kv, 0) >= 0 {
				continue
			}
			if i, seen := index[name]; seen {
				out[i] = kv
				continue
			}
			index[name] = len(out)
			out = append(out, kv)
		}
	}
	return out
}
