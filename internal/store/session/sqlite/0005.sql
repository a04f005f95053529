CREATE TABLE checkpoints (                -- what the finished steps of unfinished turns left
  turn    TEXT PRIMARY KEY REFERENCES turns(id) ON DELETE CASCADE,
  record  TEXT NOT NULL,
  state   TEXT NOT NULL,
  step    INTEGER NOT NULL,               -- the number of the last finished step, from 1
  at      INTEGER NOT NULL,
  resumed TEXT NOT NULL                   -- JSON: when, and after which steps, the turn was resumed
) STRICT, WITHOUT ROWID;
