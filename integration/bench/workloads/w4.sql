CREATE TABLE hot (id int PRIMARY KEY, n bigint, t text, ts timestamptz) WITH (fillfactor = 50);
INSERT INTO hot SELECT g, 0, 'row'||g, now() FROM generate_series(1, 1000) g;
-- load
DO $$ DECLARE x int := 1; BEGIN FOR i IN 1..$N(1000000) LOOP x := (x*1103515245::bigint+12345)%2147483647; UPDATE hot SET n = n+1, t = 'v'||i, ts = clock_timestamp() WHERE id = 1+abs(x)%1000; IF i%100 = 0 THEN COMMIT; END IF; END LOOP; COMMIT; END $$;
