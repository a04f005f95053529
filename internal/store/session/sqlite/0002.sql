ALTER TABLE turns ADD COLUMN statement TEXT NOT NULL DEFAULT '';  -- digest of the payload; '': not signed
ALTER TABLE turns ADD COLUMN envelope  TEXT NOT NULL DEFAULT '';  -- object with the signatures

CREATE TABLE heads (                      -- the log of heads, which only grows
  session  TEXT NOT NULL,                 -- also of sessions that were removed
  sequence INTEGER NOT NULL,              -- from 1
  digest   TEXT NOT NULL,                 -- of the entry's payload
  envelope BLOB NOT NULL,                 -- the signed entry
  PRIMARY KEY (session, sequence)
) STRICT, WITHOUT ROWID;
