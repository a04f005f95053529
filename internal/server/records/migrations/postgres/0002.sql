-- The objects that a client finds by its own ID, without reading all of a tenant's: the label
-- labelIndexed. The expression is that of the query.
CREATE INDEX objects_label ON objects(tenant, kind, (CAST(labels AS jsonb) ->> 'kubernetes.uid'), seq)
  WHERE CAST(labels AS jsonb) ->> 'kubernetes.uid' IS NOT NULL;
