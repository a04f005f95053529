CREATE TABLE identity (                   -- one row
  id    TEXT NOT NULL,                    -- of the database, for places that belong to it
  store TEXT NOT NULL                     -- where the objects of its turns are; '': not known yet
);

CREATE TABLE sessions (
  id      TEXT COLLATE "C" PRIMARY KEY,
  name    TEXT COLLATE "C" UNIQUE,        -- NULL: anonymous
  created BIGINT NOT NULL,                -- ns since 1970, as all times here
  next    BIGINT NOT NULL DEFAULT 1,      -- number of the next turn; never one that was given
  domain  TEXT NOT NULL DEFAULT ''        -- '': its data is not sealed
);

CREATE INDEX sessions_domain ON sessions(domain) WHERE domain <> '';

CREATE TABLE turns (
  id        TEXT COLLATE "C" PRIMARY KEY,
  session   TEXT COLLATE "C" NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
  number    BIGINT NOT NULL CHECK (number > 0),
  branch    TEXT COLLATE "C" NOT NULL,    -- where it was started, or ended when that had moved on
  kind      TEXT NOT NULL,
  title     TEXT NOT NULL,
  status    TEXT NOT NULL CHECK (status IN ('running', 'done')),
  result    TEXT NOT NULL,
  record    TEXT NOT NULL,                -- '': none
  state     TEXT NOT NULL,                -- '': none
  statement TEXT NOT NULL DEFAULT '',     -- digest of the payload; '': not signed
  envelope  TEXT NOT NULL DEFAULT '',     -- object with the signatures
  started   BIGINT NOT NULL,
  ended     BIGINT NOT NULL,              -- 0 while it runs
  UNIQUE (session, number)
);

CREATE INDEX turns_running ON turns(status) WHERE status = 'running';

CREATE TABLE parents (
  turn     TEXT COLLATE "C" NOT NULL REFERENCES turns(id) ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
  position INTEGER NOT NULL,
  parent   TEXT COLLATE "C" NOT NULL REFERENCES turns(id) DEFERRABLE INITIALLY DEFERRED,
  PRIMARY KEY (turn, position)
);

CREATE INDEX parents_parent ON parents(parent);

CREATE TABLE branches (
  session TEXT COLLATE "C" NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
  name    TEXT COLLATE "C" NOT NULL,
  head    TEXT COLLATE "C" REFERENCES turns(id) DEFERRABLE INITIALLY DEFERRED, -- NULL: no turn yet
  created BIGINT NOT NULL,
  PRIMARY KEY (session, name)
);

CREATE INDEX branches_head ON branches(head);

CREATE TABLE tags (
  session TEXT COLLATE "C" NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
  name    TEXT COLLATE "C" NOT NULL,
  turn    TEXT COLLATE "C" NOT NULL REFERENCES turns(id) DEFERRABLE INITIALLY DEFERRED,
  created BIGINT NOT NULL,
  PRIMARY KEY (session, name)
);

CREATE INDEX tags_turn ON tags(turn);

CREATE TABLE heads (                      -- the log of heads, which only grows
  session  TEXT COLLATE "C" NOT NULL,     -- also of sessions that were removed
  sequence BIGINT NOT NULL,               -- from 1
  digest   TEXT NOT NULL,                 -- of the entry's payload
  envelope BYTEA NOT NULL,                -- the signed entry
  PRIMARY KEY (session, sequence)
);

CREATE TABLE homes (
  owner TEXT COLLATE "C" NOT NULL,        -- '': the hosts' user
  name  TEXT COLLATE "C" NOT NULL,
  root  TEXT NOT NULL,                    -- the tree
  hash  TEXT NOT NULL,                    -- its FS hash
  bytes BIGINT NOT NULL,                  -- of its files
  turn  TEXT NOT NULL,                    -- the last that used it; '': none in the database
  used  BIGINT NOT NULL,
  PRIMARY KEY (owner, name)
);

CREATE TABLE home_uses (                  -- the trees that turns began and ended with
  turn       TEXT COLLATE "C" PRIMARY KEY REFERENCES turns(id) ON DELETE CASCADE,
  owner      TEXT COLLATE "C" NOT NULL,
  name       TEXT COLLATE "C" NOT NULL,
  began_root TEXT NOT NULL,
  began_hash TEXT NOT NULL,
  ended_root TEXT NOT NULL,
  ended_hash TEXT NOT NULL,
  at         BIGINT NOT NULL
);

CREATE INDEX home_uses_home ON home_uses(owner, name, at);

CREATE TABLE needs (                      -- what sealed sessions keep from deletion
  rowid   BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  session TEXT COLLATE "C" NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
  turn    TEXT COLLATE "C" REFERENCES turns(id) ON DELETE CASCADE,  -- NULL: as long as there is the session
  names   BYTEA NOT NULL                  -- of objects: 32 bytes each
);

CREATE INDEX needs_session ON needs(session);
CREATE INDEX needs_turn ON needs(turn);

CREATE TABLE bases (                      -- trees of templates, which are public, below sealed sessions
  session TEXT COLLATE "C" NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
  root    TEXT COLLATE "C" NOT NULL,
  hash    TEXT NOT NULL,                  -- its FS hash
  PRIMARY KEY (session, root)
);

CREATE TABLE checkpoints (                -- what the finished steps of unfinished turns left
  turn    TEXT COLLATE "C" PRIMARY KEY REFERENCES turns(id) ON DELETE CASCADE,
  record  TEXT NOT NULL,
  state   TEXT NOT NULL,
  step    INTEGER NOT NULL,               -- the number of the last finished step, from 1
  at      BIGINT NOT NULL,
  resumed TEXT NOT NULL                   -- JSON: when, and after which steps, the turn was resumed
);
