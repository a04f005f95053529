CREATE TABLE owners (                     -- whose sessions are
  session TEXT COLLATE "C" PRIMARY KEY,
  entry   BYTEA NOT NULL,                 -- as package owners encodes it
  changed TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE tickets (                    -- turns that run, or whose node was lost
  id        TEXT COLLATE "C" PRIMARY KEY,
  turn      TEXT COLLATE "C" NOT NULL,
  node      TEXT COLLATE "C" NOT NULL,    -- that runs it
  ticket    BYTEA NOT NULL,               -- as package turns encodes them
  begun     BYTEA NOT NULL,
  attempt   INTEGER NOT NULL,             -- from 0
  cancelled BOOLEAN NOT NULL,             -- it does not start again
  started   TIMESTAMPTZ NOT NULL,         -- by the clock of the node
  seen      TIMESTAMPTZ NOT NULL          -- by its node, by the database's clock
);
