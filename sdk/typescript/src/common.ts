export * from "./errors.js";
export {
  CommandError,
  ExecStream,
  type Command,
  type CommandInfo,
  type ExecOptions,
  type ExecResult,
  type OutputChunk,
} from "./exec.js";
export { Files, type CallOptions, type FileChange, type FileInfo } from "./files.js";
export type { Progress, Tell } from "./journal.js";
export type { InputSource, StreamName } from "./process.js";
export { Receipt, type Place, type Step, type StepCommand, type StepFailure } from "./receipt.js";
export type { RunOptions } from "./run.js";
export {
  Sandbox,
  type BackgroundProcess,
  type SandboxInfo,
  type SandboxOptions,
} from "./sandbox.js";
export {
  Session,
  type Branch,
  type Diff,
  type FileDifference,
  type Log,
  type Merge,
  type Replay,
  type Tag,
  type Turn,
  type Verified,
} from "./session.js";
export { TurnstoneClient, type ContextOptions, type Usage } from "./client.js";
