package executor_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/executor"
)

// Open an executor on a state directory, run a document in a sandbox, and print the receipt.
func ExampleExecutor_Run() {
	ctx := context.Background()
	x, err := executor.Open(ctx, executor.Options{Dir: "/var/lib/robot"})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = x.Close() }()
	doc, err := document.Parse("hello.md", []byte("```bash\necho hello\n```\n"))
	if err != nil {
		log.Fatal(err)
	}
	turn, err := x.Run(ctx, executor.Request{Document: doc}, nil)
	if err != nil {
		log.Fatal(err) // nothing was started
	}
	fmt.Println(turn.Result)
	fmt.Print(turn.Receipt)
}

// A Planner checks a document against the host's limits. It starts nothing, and makes no state
// directory.
func ExamplePlanner() {
	x, err := executor.Planner(executor.Options{Dir: os.TempDir() + "/no-such-directory"})
	if err != nil {
		log.Fatal(err)
	}
	for _, text := range []string{"```bash\ntrue\n```\n", "---\ncpus: 500\n---\n"} {
		doc, err := document.Parse("task.md", []byte(text))
		if err == nil {
			err = x.Check(doc, ".", false)
		}
		fmt.Println(err)
	}
	// Output:
	// <nil>
	// task.md:2:7: cpus: "500" is not a number of CPUs
}
