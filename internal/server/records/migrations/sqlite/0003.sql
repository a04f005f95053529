-- What machines used, as their nodes measured it, and the session of each.
ALTER TABLE usage ADD COLUMN session TEXT NOT NULL DEFAULT '';
ALTER TABLE usage ADD COLUMN cpu INTEGER NOT NULL DEFAULT 0;      -- ns
ALTER TABLE usage ADD COLUMN sent INTEGER NOT NULL DEFAULT 0;     -- bytes
ALTER TABLE usage ADD COLUMN received INTEGER NOT NULL DEFAULT 0; -- bytes
