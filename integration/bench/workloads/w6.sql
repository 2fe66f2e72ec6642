CREATE TABLE del (id bigint PRIMARY KEY, a int, b text, c timestamptz, d numeric);
INSERT INTO del SELECT g, g%100, md5(g::text), now(), g/3.0 FROM generate_series(1, $N(1000000)) g;
-- load
DO $$ BEGIN FOR i IN 0..$N(1000000)/10000-1 LOOP DELETE FROM del WHERE id > i*10000 AND id <= (i+1)*10000; COMMIT; END LOOP; END $$;
