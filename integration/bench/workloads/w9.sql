CREATE TABLE toasty (id int PRIMARY KEY, n bigint, t text, doc text);
ALTER TABLE toasty ALTER doc SET STORAGE EXTERNAL;
INSERT INTO toasty SELECT g, 0, 'a', repeat(md5(g::text), 1600) FROM generate_series(1, $N(20000)) g;
-- load
DO $$ BEGIN FOR r IN 1..10 LOOP FOR i IN 0..$N(20000)/100-1 LOOP UPDATE toasty SET n = n+1, t = 'r'||r WHERE id > i*100 AND id <= (i+1)*100; COMMIT; END LOOP; END LOOP; END $$;
