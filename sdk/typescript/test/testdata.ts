import { readFileSync } from "node:fs";
import { join } from "node:path";

/** Reads a file of vectors that all SDKs share. */
export function testdata<T>(name: string): T {
  const folder = process.env["TESTDATA"];
  if (!folder) throw new Error("TESTDATA is not set: run scripts/suites/typescript");
  return JSON.parse(readFileSync(join(folder, name), "utf8")) as T;
}
