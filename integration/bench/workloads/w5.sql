CREATE TABLE wide (id bigint PRIMARY KEY, c1 int, c2 int, c3 bigint, c4 text, c5 text, c6 text, c7 numeric(12,2), c8 timestamptz, c9 double precision, c10 uuid, c11 text, c12 boolean);
INSERT INTO wide SELECT g, g%100, g%1000, g*17, 't4-'||g, md5(g::text), repeat('x',60), g/7.0, now(), g/3.0, md5(g::text)::uuid, repeat(md5(g::text),3), true FROM generate_series(1, $N(500000)) g;
-- load
DO $$ BEGIN FOR i IN 0..$N(500000)/1000-1 LOOP UPDATE wide SET c1 = c1+1, c4 = 'u-'||id, c7 = c7+1, c8 = clock_timestamp() WHERE id > i*1000 AND id <= (i+1)*1000; COMMIT; END LOOP; END $$;
