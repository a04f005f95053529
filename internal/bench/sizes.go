package main

import (
	"flag"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/bench/size"
)

// sizes are how much the parts measure.
type sizes struct {
	divide              size.Divisor // of all sizes that have no flag
	stream              string       // of head -c
	state               turnstone.Bytes
	runs, depth, clones int
}

func fullSizes() sizes {
	return sizes{divide: size.Full, stream: "1G", state: 10 << 30, runs: 20, depth: 500, clones: 100}
}

// quickSizes are the smallest with which all code of the parts runs.
func quickSizes() sizes {
	return sizes{divide: size.Quick, stream: "1M", state: 4 << 20, runs: 1, depth: 2, clones: 1}
}

// quick reports whether the figures mean nothing.
func (s *sizes) quick() bool { return s.divide > size.Full }

// warmUps returns the number of starts that do not count, because they may have to make a snapshot.
func (s *sizes) warmUps() int { return s.divide.WarmUps(1) }

// addFlags adds flags for sizes.
func (s *sizes) addFlags() {
	flag.IntVar(&s.runs, "runs", s.runs, "runs of each start")
	flag.StringVar(&s.stream, "stream", s.stream, "size of the streaming step's output")
	flag.Func("state", "size of the files of all turns of the history part (default 10G)",
		func(text string) (err error) {
			s.state, err = turnstone.ParseBytes(text)
			return err
		})
	flag.IntVar(&s.depth, "depth", s.depth, "number of turns of the history part")
	flag.IntVar(&s.clones, "forks", s.clones, "number of clones of the part forks")
}
