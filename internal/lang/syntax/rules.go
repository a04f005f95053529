package syntax

// A languageRule defines the language of a program that a command names, and the position of its
// code in the command. To support another program, add a line to the table below, an example to
// rules_test.go, and the line that the test then prints to docs/shell.md.
//
// Lists are words separated by blanks. An option in Values or Instead can have a count, "--arg:2":
// that many words follow it.
type languageRule struct {
	Programs string // names, without their folder; "python*" matches any version: python3.12
	Language string // "" for a program that runs its arguments
	Code     string // options whose value is code
	Values   string // options whose value is not code
	Instead  string // options with a value that replace the code: awk -f FILE
	Operand  int    // which operand is code, from 1; 0 for none
	Rest     bool   // all operands after that operand are code too
	First    bool   // options end at the first operand

	// Stdin is the maximum number of operands if standard input is code, plus one; 0 if it never
	// is. A lone "-" does not count as an operand and ends them.
	Stdin int
	Force string // options with which standard input is code, regardless of operands

	// Prefix: the words after the options, variables and Skip operands are a command.
	Prefix bool
	Skip   int

	// File defines the position of the name of the file to which standard input is written, whose
	// extension determines the language: ">" for redirections, "operands", or "of=".
	File string
}

// languageRules returns the table. The first rule with a program's name counts.
func languageRules() []languageRule {
	return []languageRule{
		{Programs: "python* pypy*", Language: "python", Code: "-c",
			Values: "-W -X --check-hash-based-pycs", Instead: "-m", First: true, Stdin: 1},
		{Programs: "node nodejs", Language: "javascript", Code: "-e --eval -p --print -pe",
			Values: "-r --require --import -C --conditions --env-file", First: true, Stdin: 1},
		{Programs: "deno", Language: "javascript"},
		{Programs: "ruby*", Language: "ruby", Code: "-e",
			Values: "-r -I -C -E --encoding", First: true, Stdin: 1},
		{Programs: "perl*", Language: "perl", Code: "-e -E", Values: "-I", First: true, Stdin: 1},
		{Programs: "psql", Language: "sql", Code: "-c --command",
			Values: "-d --dbname -f --file -h --host -p --port -U --username -v --set --variable -F " +
				"-R -P -T -o --output -L --log-file", Stdin: 99},
		{Programs: "sqlite sqlite3", Language: "sql",
			Values:  "-cmd:1 -init:1 -separator:1 -newline:1 -nullvalue:1 -vfs:1 -maxsize:1 -mmap:1",
			Operand: 2, Rest: true, Stdin: 2},
		{Programs: "mysql mariadb", Language: "sql", Code: "-e --execute",
			Values: "-u --user -h --host -P --port -D --database -S --socket", Stdin: 99},
		{Programs: "jq gojq jaq", Language: "jq",
			Values:  "--indent -L --arg:2 --argjson:2 --slurpfile:2 --rawfile:2 --argfile:2",
			Instead: "-f --from-file", Operand: 1},
		{Programs: "awk gawk mawk nawk original-awk goawk", Language: "awk", Code: "-e --source",
			Values: "-F --field-separator -v --assign -i --include -l --load", Instead: "-f --file",
			Operand: 1, First: true},
		{Programs: "sed gsed", Language: "sed", Code: "-e --expression", Values: "-l --line-length",
			Instead: "-f --file", Operand: 1},
		{Programs: "bash sh dash ash ksh", Language: "bash", Code: "-c",
			Values: "-o -O +O --init-file --rcfile", First: true, Stdin: 1, Force: "-s"},
		{Programs: "ssh", Language: "bash",
			Values: "-b -B -c -D -E -e -F -I -i -J -L -l -m -O -o -P -p -Q -R -S -W -w", Operand: 2,
			First: true, Stdin: 2},

		{Programs: "env", Prefix: true, Values: "-u --unset -C --chdir -S", First: true},
		{Programs: "sudo doas", Prefix: true,
			Values: "-u --user -g --group -h --host -p --prompt -C --close-from -D --chdir -R " +
				"--chroot -r --role -t --type -T --command-timeout -U --other-user", First: true},
		{Programs: "timeout", Prefix: true, Skip: 1,
			Values: "-k --kill-after -s --signal", First: true},
		{Programs: "nice", Prefix: true, Values: "-n --adjustment", First: true},
		{Programs: "ionice", Prefix: true, Values: "-c --class -n --classdata", First: true},
		{Programs: "xargs", Prefix: true,
			Values: "-a --arg-file -d --delimiter -E -I -L -n --max-args -P --max-procs -s " +
				"--max-chars --process-slot-var", First: true},
		{Programs: "time", Prefix: true, Values: "-f --format -o --output", First: true},
		{Programs: "exec", Prefix: true, Values: "-a", First: true},
		{Programs: "stdbuf", Prefix: true,
			Values: "-i --input -o --output -e --error", First: true},
		{Programs: "command builtin nohup setsid unbuffer", Prefix: true, First: true},

		{Programs: "cat", File: ">"},
		{Programs: "tee", File: "operands"},
		{Programs: "dd", File: "of="},
	}
}

// endings returns the language of each file name extension.
func endings() map[string]string {
	return map[string]string{
		".py": "python", ".js": "javascript", ".mjs": "javascript",
		".cjs": "javascript", ".json": "json",
		".rb": "ruby", ".sql": "sql", ".sh": "bash", ".bash": "bash", ".awk": "awk", ".sed": "sed",
		".pl": "perl", ".pm": "perl", ".jq": "jq",
	}
}
