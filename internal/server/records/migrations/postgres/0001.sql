-- Times are ns since 1970, except ages. Text sorts by its bytes, as in SQLite.
CREATE TABLE meta (
  name  TEXT COLLATE "C" PRIMARY KEY,
  value BIGINT NOT NULL
);

INSERT INTO meta VALUES
  ('age', 0),                             -- ns that servers of this database have run
  ('number', 0);                          -- the last number of revocations

CREATE TABLE secret (value BYTEA NOT NULL); -- authenticates tokens of pages

INSERT INTO secret VALUES (decode(replace(gen_random_uuid()::text || gen_random_uuid()::text,
  '-', ''), 'hex'));

-- The controller that leads. A new leader raises the fence. Writes hold the row's key, which a new
-- leader changes and a renewal does not.
CREATE TABLE leader (
  name    TEXT COLLATE "C" PRIMARY KEY,
  fence   BIGINT NOT NULL UNIQUE,
  holder  TEXT NOT NULL,
  address TEXT NOT NULL,
  until   TIMESTAMPTZ NOT NULL,           -- by this server's clock
  key     TEXT NOT NULL                   -- thumbprint of the key that signs its tokens
);

INSERT INTO leader VALUES ('controller', 0, '', '', '-infinity', '');

CREATE TABLE tenants (
  name     TEXT COLLATE "C" PRIMARY KEY,
  disabled BOOLEAN NOT NULL,
  created  BIGINT NOT NULL
);

CREATE TABLE tokens (
  seq       BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  id        TEXT COLLATE "C" NOT NULL UNIQUE, -- jti; never a token
  tenant    TEXT COLLATE "C" NOT NULL REFERENCES tenants(name),
  name      TEXT NOT NULL,
  subject   TEXT NOT NULL,
  key       TEXT NOT NULL,
  scopes    TEXT NOT NULL,                -- JSON
  issued    BIGINT NOT NULL,
  expires   BIGINT NOT NULL,
  age       BIGINT NOT NULL,              -- of the database, when it was issued
  ancestors TEXT NOT NULL DEFAULT '[]'    -- JSON
);

CREATE INDEX tokens_tenant ON tokens(tenant, seq);

CREATE TABLE revocations (
  issuer  TEXT COLLATE "C" NOT NULL,
  token   TEXT COLLATE "C" NOT NULL,      -- '': the key
  key     TEXT COLLATE "C" NOT NULL,      -- '': the token
  until   BIGINT NOT NULL,                -- 0: for ever
  revoked BIGINT NOT NULL,
  age     BIGINT NOT NULL,                -- of the database, when it was revoked
  PRIMARY KEY (issuer, token, key)
);

CREATE TABLE nodes (
  name    TEXT COLLATE "C" PRIMARY KEY,
  state   TEXT NOT NULL,
  address TEXT NOT NULL,
  detail  BYTEA NOT NULL,
  seen    BIGINT NOT NULL
);

CREATE TABLE keys (
  id      BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant  TEXT COLLATE "C" NOT NULL,
  method  TEXT COLLATE "C" NOT NULL,
  key     TEXT COLLATE "C" NOT NULL,
  request TEXT NOT NULL,                  -- digest
  UNIQUE (tenant, method, key)
);

CREATE TABLE objects (
  seq       BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, -- the order of creation: one writes at a time
  kind      TEXT COLLATE "C" NOT NULL,
  id        TEXT COLLATE "C" NOT NULL,
  tenant    TEXT COLLATE "C" NOT NULL REFERENCES tenants(name),
  owner     TEXT NOT NULL,
  node      TEXT COLLATE "C" NOT NULL,
  name      TEXT COLLATE "C" NOT NULL,
  session   TEXT COLLATE "C" NOT NULL,
  template  TEXT NOT NULL,
  state     TEXT NOT NULL,
  result    TEXT NOT NULL,
  reason    TEXT NOT NULL,
  paused    BOOLEAN NOT NULL,
  labels    TEXT NOT NULL,                -- JSON
  detail    BYTEA NOT NULL,
  created   BIGINT NOT NULL,
  changed   BIGINT NOT NULL,
  ended     BIGINT NOT NULL,              -- 0: not yet
  expires   BIGINT NOT NULL,              -- 0: never
  ended_age BIGINT,                       -- age of the database at the end; NULL: not yet
  key       BIGINT REFERENCES keys(id) ON DELETE SET NULL,
  UNIQUE (kind, id)
);

CREATE INDEX objects_tenant ON objects(tenant, kind, seq);
CREATE INDEX objects_node ON objects(node, ended_age);
CREATE INDEX objects_key ON objects(key) WHERE key IS NOT NULL;
CREATE INDEX objects_ended ON objects(ended_age) WHERE ended_age IS NOT NULL;
CREATE UNIQUE INDEX objects_name ON objects(tenant, kind, name)
  WHERE name <> '' AND ended_age IS NULL;

CREATE TABLE usage (
  object   TEXT COLLATE "C" NOT NULL,
  part     BIGINT NOT NULL,
  tenant   TEXT COLLATE "C" NOT NULL,
  kind     TEXT NOT NULL,
  node     TEXT NOT NULL,
  since    BIGINT NOT NULL,
  until    BIGINT NOT NULL,
  cpus     BIGINT NOT NULL,
  memory   BIGINT NOT NULL,               -- bytes
  session  TEXT COLLATE "C" NOT NULL DEFAULT '',
  cpu      BIGINT NOT NULL DEFAULT 0,     -- ns
  sent     BIGINT NOT NULL DEFAULT 0,     -- bytes
  received BIGINT NOT NULL DEFAULT 0,     -- bytes
  PRIMARY KEY (object, part)
);

CREATE INDEX usage_tenant ON usage(tenant, until);
