ALTER TABLE sessions ADD COLUMN domain TEXT NOT NULL DEFAULT '';  -- '': its data is not sealed

CREATE INDEX sessions_domain ON sessions(domain) WHERE domain <> '';

CREATE TABLE needs (                      -- what sealed sessions keep from deletion
  session TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
  turn    TEXT REFERENCES turns(id) ON DELETE CASCADE,  -- NULL: as long as there is the session
  names   BLOB NOT NULL                   -- of objects: 32 bytes each
) STRICT;

CREATE TABLE bases (                      -- trees of templates, which are public, below sealed sessions
  session TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
  root    TEXT NOT NULL,
  hash    TEXT NOT NULL,                  -- its FS hash
  PRIMARY KEY (session, root)
) STRICT, WITHOUT ROWID;

CREATE INDEX needs_session ON needs(session);
CREATE INDEX needs_turn ON needs(turn);
