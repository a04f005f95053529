-- What manages an object: a controller of objects, such as one of Kubernetes, finds its own by it with
-- each change of one. Unlike a label nobody else can set it, so the index of a label goes.
DROP INDEX objects_label;
ALTER TABLE objects ADD COLUMN managed_by TEXT COLLATE "C" NOT NULL DEFAULT '';
CREATE INDEX objects_managed ON objects(tenant, kind, managed_by, seq) WHERE managed_by <> '';
