CREATE TABLE events (id bigint PRIMARY KEY, kind int NOT NULL, at timestamptz NOT NULL, body text, tags text[]);
INSERT INTO events SELECT g, g % 50, '2024-01-01'::timestamptz + g * interval '1 second', repeat(md5(g::text), 1 + (g % 16)::int), ARRAY['a' || g % 10, 'b'] FROM generate_series(1::bigint, $N(2000000)) g;
CREATE INDEX events_kind_at ON events (kind, at);
DO $$ BEGIN FOR i IN 1..30 LOOP EXECUTE format('CREATE TABLE small%s (id int PRIMARY KEY, v text)', i); EXECUTE format('INSERT INTO small%s SELECT g, md5(g::text) FROM generate_series(1, $N(2000)) g', i); END LOOP; END $$;
