CREATE TABLE meta (
  name  TEXT PRIMARY KEY,
  value ANY NOT NULL
) STRICT, WITHOUT ROWID;

INSERT INTO meta VALUES
  ('age', 0),                             -- ns that servers of this database have run
  ('number', 0),                          -- the last number of revocations
  ('secret', randomblob(32));             -- authenticates tokens of pages

CREATE TABLE tenants (
  name     TEXT PRIMARY KEY,
  disabled INTEGER NOT NULL,
  created  INTEGER NOT NULL               -- ns since 1970, as all times here except ages
) STRICT, WITHOUT ROWID;

CREATE TABLE tokens (
  seq     INTEGER PRIMARY KEY AUTOINCREMENT,
  id      TEXT NOT NULL UNIQUE,           -- jti; never a token
  tenant  TEXT NOT NULL REFERENCES tenants(name),
  name    TEXT NOT NULL,
  subject TEXT NOT NULL,
  key     TEXT NOT NULL,
  scopes  TEXT NOT NULL,                  -- JSON
  issued  INTEGER NOT NULL,
  expires INTEGER NOT NULL,
  age     INTEGER NOT NULL                -- of the database, when it was issued
) STRICT;

CREATE INDEX tokens_tenant ON tokens(tenant, seq);

CREATE TABLE revocations (
  issuer  TEXT NOT NULL,
  token   TEXT NOT NULL,                  -- '': the key
  key     TEXT NOT NULL,                  -- '': the token
  until   INTEGER NOT NULL,               -- 0: for ever
  revoked INTEGER NOT NULL,
  age     INTEGER NOT NULL,               -- of the database, when it was revoked
  PRIMARY KEY (issuer, token, key)
) STRICT, WITHOUT ROWID;

CREATE TABLE nodes (
  name    TEXT PRIMARY KEY,
  state   TEXT NOT NULL,
  address TEXT NOT NULL,
  detail  BLOB NOT NULL,
  seen    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE keys (
  id      INTEGER PRIMARY KEY,
  tenant  TEXT NOT NULL,
  method  TEXT NOT NULL,
  key     TEXT NOT NULL,
  request TEXT NOT NULL,                  -- digest
  UNIQUE (tenant, method, key)
) STRICT;

CREATE TABLE objects (
  seq       INTEGER PRIMARY KEY AUTOINCREMENT, -- the order of creation, whatever the clock says
  kind      TEXT NOT NULL,
  id        TEXT NOT NULL,
  tenant    TEXT NOT NULL REFERENCES tenants(name),
  owner     TEXT NOT NULL,
  node      TEXT NOT NULL,
  name      TEXT NOT NULL,
  session   TEXT NOT NULL,
  template  TEXT NOT NULL,
  state     TEXT NOT NULL,
  result    TEXT NOT NULL,
  reason    TEXT NOT NULL,
  paused    INTEGER NOT NULL,
  labels    TEXT NOT NULL,                -- JSON
  detail    BLOB NOT NULL,
  created   INTEGER NOT NULL,
  changed   INTEGER NOT NULL,
  ended     INTEGER NOT NULL,             -- 0: not yet
  expires   INTEGER NOT NULL,             -- 0: never
  ended_age INTEGER,                      -- age of the database at the end; NULL: not yet
  key       INTEGER REFERENCES keys(id) ON DELETE SET NULL,
  UNIQUE (kind, id)
) STRICT;

CREATE INDEX objects_tenant ON objects(tenant, kind, seq);
CREATE INDEX objects_node ON objects(node, ended_age);
CREATE INDEX objects_key ON objects(key) WHERE key IS NOT NULL;
CREATE INDEX objects_ended ON objects(ended_age) WHERE ended_age IS NOT NULL;
CREATE UNIQUE INDEX objects_name ON objects(tenant, kind, name)
  WHERE name <> '' AND ended_age IS NULL;

CREATE TABLE usage (
  object TEXT NOT NULL,
  part   INTEGER NOT NULL,
  tenant TEXT NOT NULL,
  kind   TEXT NOT NULL,
  node   TEXT NOT NULL,
  since  INTEGER NOT NULL,
  until  INTEGER NOT NULL,
  cpus   INTEGER NOT NULL,
  memory INTEGER NOT NULL,                -- bytes
  PRIMARY KEY (object, part)
) STRICT, WITHOUT ROWID;

CREATE INDEX usage_tenant ON usage(tenant, until);
