CREATE TABLE IF NOT EXISTS walferry.version (version int NOT NULL);
INSERT INTO walferry.version SELECT 3 WHERE NOT EXISTS (SELECT FROM walferry.version);
CREATE TABLE IF NOT EXISTS walferry.subscription (
	name text PRIMARY KEY,
	publisher text NOT NULL DEFAULT '',
	system_id text,
	timeline int,
	position pg_lsn,
	epoch bigint NOT NULL DEFAULT 0,
	created_at timestamptz NOT NULL DEFAULT now(),
	updated_at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50);
ALTER TABLE walferry.subscription ADD COLUMN IF NOT EXISTS last_commit pg_lsn,
	ADD COLUMN IF NOT EXISTS last_xid bigint, ADD COLUMN IF NOT EXISTS last_time timestamptz;
UPDATE walferry.version SET version = 3 WHERE version < 3;
CREATE TABLE IF NOT EXISTS walferry.subscription_state (
	name text PRIMARY KEY,
	state text NOT NULL DEFAULT 'initial',
	error jsonb,
	error_count bigint NOT NULL DEFAULT 0,
	attempt_started_at timestamptz,
	skip_lsn pg_lsn,
	applied_at timestamptz,
	updated_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE IF NOT EXISTS walferry.subscription_table (
	subscription text NOT NULL,
	schema_name text NOT NULL,
	table_name text NOT NULL,
	target_schema text NOT NULL,
	target_table text NOT NULL,
	state text NOT NULL,
	copy_lsn pg_lsn,
	relation_oid oid,
	removed_lsn pg_lsn,
	rows bigint,
	PRIMARY KEY (subscription, schema_name, table_name)
);
CREATE TABLE IF NOT EXISTS walferry.subscription_part (
	subscription text NOT NULL,
	schema_name text NOT NULL,
	table_name text NOT NULL,
	part int NOT NULL,
	source text NOT NULL,
	first_block bigint NOT NULL,
	last_block bigint NOT NULL,
	shape text NOT NULL,
	attempt text NOT NULL,
	rows bigint NOT NULL DEFAULT 0,
	stored bigint NOT NULL DEFAULT 0,
	bound bigint NOT NULL DEFAULT 0,
	xids bigint[] NOT NULL DEFAULT '{}',
	copy_lsn pg_lsn,
	PRIMARY KEY (subscription, schema_name, table_name, part)
);
CREATE TABLE IF NOT EXISTS walferry.subscription_pending (
	id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	subscription text NOT NULL,
	stage int NOT NULL,
	object text NOT NULL,
	statement text NOT NULL
);
CREATE INDEX IF NOT EXISTS subscription_pending_order ON walferry.subscription_pending (subscription, stage, id);
CREATE TABLE IF NOT EXISTS walferry.exceptions (
	id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	subscription text NOT NULL,
	commit_lsn pg_lsn,
	end_lsn pg_lsn,
	xid bigint,
	commit_time timestamptz,
	ordinal bigint,
	schema_name text,
	table_name text,
	operation text,
	class text,
	sqlstate text,
	message text,
	key jsonb,
	old_row jsonb,
	new_row jsonb,
	policy text,
	recorded_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX IF NOT EXISTS exceptions_subscription_commit_lsn ON walferry.exceptions (subscription, commit_lsn);
