CREATE TABLE owners (                     -- whose sessions are
  session TEXT COLLATE "C" PRIMARY KEY,
  entry   BYTEA NOT NULL,                 -- as package owners encodes it
  changed TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()
);
