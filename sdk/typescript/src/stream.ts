/**
 * A byte stream in both directions. One reader and any number of writers may use it; a write resolves
 * when more may be written.
 */
export interface ByteStream {
  /** Returns the next bytes, or null at the end. */
  read(): Promise<Uint8Array | null>;
  write(bytes: Uint8Array): Promise<void>;
  /** Ends the stream at once; pending reads end. */
  close(): void;
}

/** Reads exact numbers of bytes of a stream. */
export class ByteReader {
  #stream: { read(): Promise<Uint8Array | null> };
  #rest: Uint8Array = new Uint8Array(0);

  constructor(stream: { read(): Promise<Uint8Array | null> }) {
    this.#stream = stream;
  }

  /** Returns size bytes, or fewer if the stream ends before. */
  async take(size: number): Promise<Uint8Array> {
    if (this.#rest.length >= size) {
      return this.#cut(size);
    }
    const parts = this.#rest.length > 0 ? [this.#rest] : [];
    let have = this.#rest.length;
    this.#rest = new Uint8Array(0);
    while (have < size) {
      const next = await this.#stream.read();
      if (next === null) break;
      parts.push(next);
      have += next.length;
    }
    if (parts.length === 1) {
      this.#rest = parts[0]!; // not copied: most of what is read
      return this.#cut(Math.min(size, have));
    }
    const all = new Uint8Array(have);
    let at = 0;
    for (const p of parts) {
      all.set(p, at);
      at += p.length;
    }
    this.#rest = all;
    return this.#cut(Math.min(size, have));
  }

  #cut(size: number): Uint8Array {
    const part = this.#rest.subarray(0, size);
    this.#rest = this.#rest.subarray(size);
    return part;
  }
}

/** A queue of values between a writer and one reader at a time. */
export class Queue<T> {
  #values: T[] = [];
  #waiting: { resolve(v: T | null): void; reject(err: unknown): void } | undefined;
  #ended = false;
  #error: unknown;

  get ended(): boolean {
    return this.#ended;
  }

  get size(): number {
    return this.#values.length;
  }

  push(value: T): void {
    if (this.#ended) return;
    const w = this.#waiting;
    if (w) {
      this.#waiting = undefined;
      w.resolve(value);
    } else {
      this.#values.push(value);
    }
  }

  /** Ends the queue: what it has is still read, then null or the error follows. */
  end(error?: unknown): void {
    if (this.#ended) return;
    this.#ended = true;
    this.#error = error;
    const w = this.#waiting;
    this.#waiting = undefined;
    if (w) {
      if (error === undefined) w.resolve(null);
      else w.reject(error);
    }
  }

  /** Forgets what was not read. */
  clear(): void {
    this.#values = [];
  }

  /** Returns the next value, or null at the end. */
  next(): Promise<T | null> {
    const value = this.#values.shift();
    if (value !== undefined) return Promise.resolve(value);
    if (this.#ended) {
      return this.#error === undefined
        ? Promise.resolve(null)
        : Promise.reject(this.#error as Error);
    }
    if (this.#waiting) return Promise.reject(new Error("a stream has two readers"));
    return new Promise<T | null>((resolve, reject) => {
      this.#waiting = { resolve, reject };
    });
  }
}

/** Runs tasks one after another. */
export class Lane {
  #last: Promise<unknown> = Promise.resolve();

  run<T>(task: () => Promise<T>): Promise<T> {
    const next = this.#last.then(task, task);
    this.#last = next.catch(() => undefined);
    return next;
  }
}

let held = 0;
let timer: ReturnType<typeof setInterval> | undefined;

/**
 * Keeps the process alive while somebody waits for an answer: idle connections do not. Call the
 * returned function once.
 */
export function hold(): () => void {
  if (held++ === 0) timer = setInterval(() => undefined, 2 ** 30);
  let over = false;
  return () => {
    if (over) return;
    over = true;
    if (--held === 0) clearInterval(timer);
  };
}

/** Keeps the process alive until a promise is settled. */
export async function holding<T>(p: Promise<T>): Promise<T> {
  const release = hold();
  try {
    return await p;
  } finally {
    release();
  }
}
