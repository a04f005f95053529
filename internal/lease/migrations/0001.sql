CREATE SEQUENCE fences;

CREATE TABLE leases (
  name    TEXT COLLATE "C" PRIMARY KEY,
  holder  TEXT NOT NULL,                  -- a process
  fence   BIGINT NOT NULL,                -- of fences: none is used twice
  expires TIMESTAMPTZ NOT NULL,           -- by the database's clock
  note    TEXT NOT NULL
);
