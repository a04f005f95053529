CREATE TABLE homes (
  owner TEXT NOT NULL,                    -- '': this host's user
  name  TEXT NOT NULL,
  root  TEXT NOT NULL,                    -- the tree
  hash  TEXT NOT NULL,                    -- its FS hash
  bytes INTEGER NOT NULL,                 -- of its files
  turn  TEXT NOT NULL,                    -- the last that used it; '': none in the database
  used  INTEGER NOT NULL,
  PRIMARY KEY (owner, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE home_uses (                  -- the trees that turns began and ended with
  turn       TEXT PRIMARY KEY REFERENCES turns(id) ON DELETE CASCADE,
  owner      TEXT NOT NULL,
  name       TEXT NOT NULL,
  began_root TEXT NOT NULL,
  began_hash TEXT NOT NULL,
  ended_root TEXT NOT NULL,
  ended_hash TEXT NOT NULL,
  at         INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX home_uses_home ON home_uses(owner, name, at);
