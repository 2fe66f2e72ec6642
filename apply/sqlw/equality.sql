WITH RECURSIVE col AS (
  SELECT a.attnum, b.oid AS base FROM pg_attribute a
  CROSS JOIN LATERAL (
    WITH RECURSIVE d(oid, base) AS (
      SELECT t.oid, t.typbasetype FROM pg_type t WHERE t.oid = a.atttypid
      UNION ALL SELECT t.oid, t.typbasetype FROM d JOIN pg_type t ON t.oid = d.base WHERE d.base <> 0)
    SELECT oid FROM d WHERE base = 0) b
  WHERE a.attrelid = $1::oid AND a.attnum > 0 AND NOT a.attisdropped),
part(root, typ) AS (
  SELECT DISTINCT base, base FROM col
  UNION
  SELECT p.root, x.typ FROM part p JOIN pg_type t ON t.oid = p.typ
  CROSS JOIN LATERAL (
    SELECT t.typbasetype AS typ WHERE t.typtype = 'd'
    UNION ALL SELECT t.typelem WHERE t.typcategory = 'A' AND t.typelem <> 0
    UNION ALL SELECT a.atttypid FROM pg_attribute a WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL SELECT r.rngsubtype FROM pg_range r WHERE r.rngtypid = t.oid OR r.rngmultitypid = t.oid) x),
op(typ, schema, name) AS (
  SELECT p.typ, o.nspname, o.oprname FROM (SELECT DISTINCT typ FROM part) p JOIN pg_type t ON t.oid = p.typ
  LEFT JOIN LATERAL (
    SELECT n.nspname, o.oprname FROM pg_opclass oc JOIN pg_am am ON am.oid = oc.opcmethod AND am.amname IN ('btree', 'hash')
    JOIN pg_amop ao ON ao.amopfamily = oc.opcfamily AND ao.amoplefttype = oc.opcintype AND ao.amoprighttype = oc.opcintype
      AND ao.amopstrategy = CASE am.amname WHEN 'btree' THEN 3 ELSE 1 END
    JOIN pg_operator o ON o.oid = ao.amopopr JOIN pg_namespace n ON n.oid = o.oprnamespace
    WHERE oc.opcdefault AND (oc.opcintype = t.oid
      OR oc.opcintype = CASE WHEN t.typtype = 'e' THEN 'anyenum'::regtype WHEN t.typtype = 'r' THEN 'anyrange'::regtype
        WHEN t.typtype = 'm' THEN 'anymultirange'::regtype WHEN t.typtype = 'c' THEN 'record'::regtype
        WHEN t.typcategory = 'A' AND t.typelem <> 0 THEN 'anyarray'::regtype END
      OR EXISTS (SELECT FROM pg_cast k WHERE k.castsource = t.oid AND k.casttarget = oc.opcintype AND k.castmethod = 'b' AND k.castcontext = 'i'))
    ORDER BY oc.opcintype = t.oid DESC, am.amname LIMIT 1) o ON true)
SELECT c.attnum, o.schema, o.name FROM col c JOIN op o ON o.typ = c.base
WHERE o.name IS NOT NULL AND NOT EXISTS (
  SELECT FROM part p JOIN op x ON x.typ = p.typ JOIN pg_type t ON t.oid = p.typ
  WHERE p.root = c.base AND x.name IS NULL AND t.typtype <> 'd')
