-- The objects that a client finds by its own ID, without reading all of a tenant's: the label
-- labelIndexed. The expression is that of the query, letter by letter.
CREATE INDEX objects_label ON objects(tenant, kind, json_extract(labels, '$."kubernetes.uid"'))
  WHERE json_extract(labels, '$."kubernetes.uid"') IS NOT NULL;
