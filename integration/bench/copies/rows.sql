CREATE TABLE big (id bigint PRIMARY KEY, a int NOT NULL, b bigint, c text, d text, e numeric(12,3), f timestamptz, g boolean, h double precision, i uuid);
INSERT INTO big SELECT g, (g*7919)%100000, g*1000003, 'name-'||g, md5(g::text), (g%1000000)/7.0, '2024-01-01'::timestamptz + g*interval '1 second', g%3=0, g/3.0::float8, md5(g::text)::uuid FROM generate_series(1::bigint, $N(5000000)) g;
CREATE INDEX big_a ON big (a);
