SELECT json_build_object(
  'oid', c.oid::int8, 'kind', c.relkind::text, 'rls', c.relrowsecurity, 'rules', c.relhasrules,
  'inherited', c.relhassubclass,
  'columns', (SELECT coalesce(json_agg(json_build_object(
        'num', a.attnum, 'name', a.attname, 'type', a.atttypid::int8, 'base', b.oid::int8,
        'cast', CASE WHEN b.oid <> a.atttypid THEN format_type(b.oid, -1) END,
        'not_null', a.attnotnull, 'default', a.atthasdef, 'generated', a.attgenerated::text, 'identity', a.attidentity::text,
        'collation', a.attcollation::int8)
      ORDER BY a.attnum), '[]')
    FROM pg_attribute a
    CROSS JOIN LATERAL (
      WITH RECURSIVE d(oid, base) AS (
        SELECT t.oid, t.typbasetype FROM pg_type t WHERE t.oid = a.atttypid
        UNION ALL SELECT t.oid, t.typbasetype FROM d JOIN pg_type t ON t.oid = d.base WHERE d.base <> 0)
      SELECT oid FROM d WHERE base = 0) b
    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
  'indexes', (SELECT coalesce(json_agg(json_build_object(
        'oid', i.indexrelid::int8, 'name', ic.relname, 'method', am.amname, 'unique', i.indisunique, 'primary', i.indisprimary,
        'exclusion', i.indisexclusion, 'immediate', i.indimmediate, 'identity', i.indisreplident, 'clustered', i.indisclustered,
        'partial', i.indpred IS NOT NULL, 'nulls_equal', coalesce((to_jsonb(i)->>'indnullsnotdistinct')::bool, false),
        'constraint', con.conname, 'deferrable', coalesce(con.condeferrable, false),
        'columns', (SELECT json_agg(json_build_object('num', k.num, 'schema', n.nspname, 'op', o.oprname, 'collation', k.coll::int8) ORDER BY k.ord)
          FROM (SELECT u.ord, u.num, u.cls, u.coll, CASE WHEN i.indisexclusion THEN con.conexclop[u.ord] END AS excl
                FROM unnest(i.indkey::int2[], i.indclass::oid[], i.indcollation::oid[]) WITH ORDINALITY AS u(num, cls, coll, ord)
                WHERE u.ord <= i.indnkeyatts) k
          LEFT JOIN pg_opclass oc ON oc.oid = k.cls
          LEFT JOIN pg_amop ao ON ao.amopfamily = oc.opcfamily AND ao.amoplefttype = oc.opcintype AND ao.amoprighttype = oc.opcintype
            AND ao.amopstrategy = CASE am.amname WHEN 'btree' THEN 3 WHEN 'hash' THEN 1 END
          LEFT JOIN pg_operator o ON o.oid = coalesce(k.excl, ao.amopopr)
          LEFT JOIN pg_namespace n ON n.oid = o.oprnamespace))
      ORDER BY i.indisprimary DESC, i.indisreplident DESC, i.indnkeyatts, i.indexrelid), '[]')
    FROM pg_index i JOIN pg_class ic ON ic.oid = i.indexrelid JOIN pg_am am ON am.oid = ic.relam
    LEFT JOIN pg_constraint con ON con.conindid = i.indexrelid AND con.conrelid = c.oid AND con.contype IN ('p', 'u', 'x')
    WHERE i.indrelid = c.oid AND i.indisvalid AND i.indisready AND i.indislive),
  'triggers', (SELECT coalesce(json_agg(DISTINCT jsonb_build_object('enabled', t.tgenabled::text, 'type', t.tgtype)), '[]')
    FROM pg_trigger t WHERE t.tgrelid IN (SELECT c.oid UNION ALL SELECT relid FROM pg_partition_tree(c.oid)) AND NOT t.tgisinternal),
  'rewrite', (SELECT coalesce(json_agg(json_build_object('event', r.ev_type::text, 'enabled', r.ev_enabled::text)), '[]')
    FROM pg_rewrite r WHERE r.ev_class = c.oid AND r.ev_type <> '1'),
  'cascades', EXISTS (SELECT FROM pg_constraint f WHERE f.confrelid = c.oid AND f.contype = 'f' AND f.confdeltype IN ('c', 'n', 'd')),
  'foreign', EXISTS (SELECT FROM pg_partition_tree(c.oid) p JOIN pg_class f ON f.oid = p.relid WHERE f.relkind = 'f')
)::text
FROM pg_class c JOIN pg_namespace s ON s.oid = c.relnamespace
WHERE s.nspname = $1 AND c.relname = $2
