CREATE TABLE sessions (
  id      TEXT PRIMARY KEY,
  name    TEXT UNIQUE,                    -- NULL: anonymous
  created INTEGER NOT NULL,               -- ns since 1970, as all times here
  next    INTEGER NOT NULL DEFAULT 1      -- number of the next turn; never one that was given
) STRICT;

CREATE TABLE turns (
  id      TEXT PRIMARY KEY,
  session TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
  number  INTEGER NOT NULL CHECK (number > 0),
  branch  TEXT NOT NULL,                  -- where it was started, or ended when that had moved on
  kind    TEXT NOT NULL,
  title   TEXT NOT NULL,
  status  TEXT NOT NULL CHECK (status IN ('running', 'done')),
  result  TEXT NOT NULL,
  record  TEXT NOT NULL,                  -- '': none
  state   TEXT NOT NULL,                  -- '': none
  started INTEGER NOT NULL,
  ended   INTEGER NOT NULL,               -- 0 while it runs
  UNIQUE (session, number)
) STRICT;

CREATE INDEX turns_running ON turns(status) WHERE status = 'running';

CREATE TABLE parents (
  turn     TEXT NOT NULL REFERENCES turns(id) ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
  position INTEGER NOT NULL,
  parent   TEXT NOT NULL REFERENCES turns(id) DEFERRABLE INITIALLY DEFERRED,
  PRIMARY KEY (turn, position)
) STRICT, WITHOUT ROWID;

CREATE INDEX parents_parent ON parents(parent);

CREATE TABLE branches (
  session TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
  name    TEXT NOT NULL,
  head    TEXT REFERENCES turns(id) DEFERRABLE INITIALLY DEFERRED, -- NULL: no turn yet
  created INTEGER NOT NULL,
  PRIMARY KEY (session, name)
) STRICT, WITHOUT ROWID;

CREATE INDEX branches_head ON branches(head);

CREATE TABLE tags (
  session TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
  name    TEXT NOT NULL,
  turn    TEXT NOT NULL REFERENCES turns(id) DEFERRABLE INITIALLY DEFERRED,
  created INTEGER NOT NULL,
  PRIMARY KEY (session, name)
) STRICT, WITHOUT ROWID;

CREATE INDEX tags_turn ON tags(turn);
