CREATE TABLE ev (id bigserial PRIMARY KEY, kind int, payload text, ts timestamptz DEFAULT now(), amount numeric(10,2));
-- load
pgbench -n -c 4 -j 2 -t $N(50000) <<\set k random(1,100)@@INSERT INTO ev (kind, payload, amount) VALUES (:k, 'payload-'||:k||'-xxxxxxxxxxxxxxxxxxxxxxxxxxx', :k*1.5);
