CREATE TABLE generation (                 -- one row
  number   BIGINT NOT NULL,               -- of sweeps; grows whenever packs are condemned
  removals BIGINT NOT NULL                -- position of the newest removal
);

INSERT INTO generation (number, removals) VALUES (1, 0);

CREATE TABLE condemned (                  -- packs of the bucket; rows are never deleted
  pack       BYTEA PRIMARY KEY,
  generation BIGINT NOT NULL,             -- the first whose batches do not use it
  removed    BIGINT                       -- position of its removal; NULL: it may exist
);

CREATE INDEX condemned_removed ON condemned(removed);

CREATE TABLE pins (                       -- trees that machines need and no turn names
  machine TEXT COLLATE "C" NOT NULL,
  root    TEXT COLLATE "C" NOT NULL,
  hash    TEXT NOT NULL,                  -- its FS hash
  PRIMARY KEY (machine, root)
);
