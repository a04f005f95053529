const languages: [RegExp, string][] = [
  [/^(python|pypy).*$/, "python"],
  [/^(node|nodejs|deno)$/, "javascript"],
  [/^ruby.*$/, "ruby"],
  [/^perl.*$/, "perl"],
  [/^(psql|sqlite|sqlite3|mysql|mariadb)$/, "sql"],
  [/^(jq|gojq|jaq)$/, "jq"],
  [/^(awk|gawk|mawk|nawk|original-awk|goawk)$/, "awk"],
  [/^g?sed$/, "sed"],
];
const prefixes = ["env", "sudo", "doas", "nice", "nohup", "time", "timeout"];

/** Returns the language of a command by its program, as the parser of steps names it. */
export function languageOf(argv: readonly string[]): string {
  const skipped = (word: string): boolean =>
    prefixes.includes(word.slice(word.lastIndexOf("/") + 1)) || /^(-|[A-Za-z_]\w*=|\d+[smhd]?$)/.test(word);
  const base = (word: string): string => word.slice(word.lastIndexOf("/") + 1);
  const name = base(argv.find((w) => !skipped(w)) ?? "");
  return languages.find(([program]) => program.test(name))?.[1] ?? "bash";
}
