-- pgbench's own tables; a key for the history, so that its rows can be found.
pgbench -i -q -s 10
ALTER TABLE pgbench_history ADD COLUMN hid bigserial PRIMARY KEY;
-- load
pgbench -n -c 4 -j 2 -t $N(25000)
